//! What is to happen, in the order of its instants; at the same instant, in the order in which it was asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::What;
use crate::time::Instant;

/// Events to come. They lie where they were put: only their instants move in the heap.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// When, which in the order of asking, where it lies.
    heap: BinaryHeap<Reverse<(Instant, u64, usize)>>,
    places: Vec<Option<What>>,
    free: Vec<usize>,
    asked: u64,
}

impl Queue {
    pub(super) fn push(&mut self, at: Instant, what: What) {
        let place = match self.free.pop() {
            Some(place) => {
                self.places[place] = Some(what);
                place
            }
            None => {
                self.places.push(Some(what));
                self.places.len() - 1
            }
        };
        self.asked += 1;
        self.heap.push(Reverse((at, self.asked, place)));
    }

    pub(super) fn pop(&mut self) -> Option<(Instant, What)> {
        let Reverse((at, _, place)) = self.heap.pop()?;
        self.free.push(place);
        let what = self.places[place].take().expect("what is in the heap has a place");
        Some((at, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_come_by_instant_and_then_in_the_order_of_asking() {
        let mut queue = Queue::default();
        for (at, read) in [(5, 1), (3, 2), (5, 3), (3, 4)] {
            queue.push(Instant(at), What::StreamUp(read));
        }
        let mut seen = Vec::new();
        while let Some((at, What::StreamUp(read))) = queue.pop() {
            if read == 2 {
                queue.push(Instant(4), What::StreamUp(9));
            }
            seen.push((at.0, read));
        }
        assert_eq!(seen, [(3, 2), (3, 4), (4, 9), (5, 1), (5, 3)]);
    }
}
