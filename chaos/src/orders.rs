//! Seeded rows in the shape of NASDAQ order events, for machines that do not have the real file.
//!
//! No header; columns: seconds after midnight, event type, order id, size, price × 10 000, direction.
//! Order ids repeat (an order is submitted, then partly executed, cancelled, deleted), so a row is
//! named by `{order id}:{line}`, never by its order id alone. The last row has no line end.

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Rows of the real sample; the generator's default.
pub const ROWS: usize = 999;

/// Seed of the rows that the README and the tests use.
pub const SEED: u64 = 20_120_621;

/// An order that is still in the book.
struct Open {
    id: u64,
    size: u32,
    price: u32,
    direction: i8,
}

/// `rows` rows, one a line, the last without a line end. The same seed gives the same bytes.
#[must_use]
pub fn rows(seed: u64, rows: usize) -> String {
    let mut rng = SmallRng::seed_from_u64(seed);
    let mut open: Vec<Open> = Vec::new();
    let mut text = String::with_capacity(rows * 41);
    // Nanoseconds after midnight: trading opens at 09:30.
    let mut now: u64 = 34_200_004_241_176;
    let mut next_id: u64 = 16_113_575;
    for row in 0..rows {
        now += rng.random_range(900..49_000_000_u64);
        let (kind, order) = next_event(&mut rng, &mut open, &mut next_id);
        let (seconds, nanos) = (now / 1_000_000_000, now % 1_000_000_000);
        if row > 0 {
            text.push('\n');
        }
        text.push_str(&format!(
            "{seconds}.{nanos:09},{kind},{},{},{},{}",
            order.id, order.size, order.price, order.direction
        ));
    }
    text
}

/// Draws the next event: 1 submission, 2 partial cancel, 3 deletion, 4 execution.
fn next_event(rng: &mut SmallRng, open: &mut Vec<Open>, next_id: &mut u64) -> (u8, Open) {
    let draw = rng.random_range(0..100);
    if open.is_empty() || draw < 47 {
        *next_id += rng.random_range(3..9_000);
        let direction: i8 = if rng.random_bool(0.5) { 1 } else { -1 };
        let size = [18, 18, 18, 100, 100, 320, 8, 12, 50][rng.random_range(0..9)];
        let price = 5_855_000 + rng.random_range(0..190_u32) * 100;
        let order = Open { id: *next_id, size, price, direction };
        open.push(Open { ..order });
        return (1, order);
    }
    let at = rng.random_range(0..open.len());
    let order = &mut open[at];
    if draw < 52 && order.size > 1 {
        let cut = rng.random_range(1..order.size);
        order.size -= cut;
        return (2, Open { id: order.id, size: cut, price: order.price, direction: order.direction });
    }
    if draw < 62 && order.size > 1 {
        let done = rng.random_range(1..order.size);
        order.size -= done;
        return (4, Open { id: order.id, size: done, price: order.price, direction: order.direction });
    }
    let order = open.swap_remove(at);
    (if draw < 90 { 3 } else { 4 }, order)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_bytes() {
        assert_eq!(rows(7, 50), rows(7, 50));
        assert_ne!(rows(7, 50), rows(8, 50));
    }

    #[test]
    fn rows_have_the_shape_of_the_real_file() {
        let text = rows(SEED, ROWS);
        assert!(!text.ends_with('\n'), "the last row has no line end");
        let lines: Vec<&str> = text.split('\n').collect();
        assert_eq!(lines.len(), ROWS);
        let mut ids: BTreeMap<&str, usize> = BTreeMap::new();
        for line in &lines {
            let columns: Vec<&str> = line.split(',').collect();
            assert_eq!(columns.len(), 6, "{line}");
            assert!(columns[0].parse::<f64>().is_ok(), "no header: {line}");
            *ids.entry(columns[2]).or_default() += 1;
        }
        let repeated = ids.values().filter(|&&n| n > 1).count();
        assert!(repeated > 300, "only {repeated} order ids repeat");
    }

    #[test]
    fn no_two_rows_are_equal() {
        let text = rows(SEED, ROWS);
        let distinct: std::collections::BTreeSet<&str> = text.split('\n').collect();
        assert_eq!(distinct.len(), ROWS);
    }
}
