//! Settings of a producer, with their defaults, bounds and reasons.

use std::time::Duration;

use quorate_proto::refusal::{Reason, Refusal};

/// What happens to later records when a record was given up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnGap {
    /// Later records of the same record key resolve as not sent until the key is released. Records without a record
    /// key go on.
    #[default]
    HaltKey,
    /// All later records resolve as not sent until released.
    HaltProducer,
    /// Later records go on: the gap stays.
    Continue,
}

/// Settings of a producer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerConfig {
    /// From `send` to the outcome. 15 s; 10 ms to 5 min (the server forgets no producer within 10 min of its use, I5).
    pub deadline: Duration,
    /// Records admitted and not yet resolved. 65 536; at least 1.
    pub max_in_flight: u32,
    /// Bytes of these records. 32 MiB; 1.25 MiB to 1 GiB, so that any single record fits.
    pub max_bytes: u32,
    /// A batch closes at this size. 256 KiB; 1 KiB to 1 MiB. A larger record is a batch of its own.
    pub batch_bytes: u32,
    /// Batches in flight per partition. 4; 1 to 32 (the server remembers the results of 64, I2).
    pub slots: u8,
    /// What a given-up record means for later ones.
    pub on_gap: OnGap,
}

impl Default for ProducerConfig {
    fn default() -> Self {
        Self {
            deadline: Duration::from_secs(15),
            max_in_flight: 65_536,
            max_bytes: 32 << 20,
            batch_bytes: 256 << 10,
            slots: 4,
            on_gap: OnGap::HaltKey,
        }
    }
}

impl ProducerConfig {
    /// Refuses values outside the documented bounds.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, naming the setting, the value and its bounds.
    pub fn validate(&self) -> Result<(), Refusal> {
        let within = |name: &str, value: u128, low: u128, high: u128, unit: &str| {
            if (low..=high).contains(&value) {
                return Ok(());
            }
            Err(Refusal::new(
                Reason::InvalidArgument,
                format!("the producer setting {name} is out of bounds"),
                format!("{name} = {value}{unit}, allowed {low} to {high}{unit}"),
                "choose a value within the bounds",
            ))
        };
        within("deadline", self.deadline.as_millis(), 10, 300_000, " ms")?;
        within("max_in_flight", self.max_in_flight.into(), 1, u32::MAX.into(), "")?;
        within("max_bytes", self.max_bytes.into(), 5 << 18, 1 << 30, " bytes")?;
        within("batch_bytes", self.batch_bytes.into(), 1 << 10, 1 << 20, " bytes")?;
        within("slots", self.slots.into(), 1, 32, "")
    }
}
