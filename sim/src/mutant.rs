//! The mutants: production with one rule left out. Each must be caught by the checker that ought to catch it.

use quorate_consensus::policy::Policy;

macro_rules! mutant {
    ($(#[$doc:meta])* $name:ident, $rule:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default)]
        pub struct $name;
        impl Policy for $name {
            const $rule: bool = false;
        }
    };
}

mutant! {
    /// A restarted voter votes at once (V1c).
    NoBootWait, BOOT_WAIT
}
mutant! {
    /// Contact is the time at which an answer came in (C1).
    ContactAtReceipt, CONTACT_FROM_STAMP
}
mutant! {
    /// A voter does not ask how long its last leader has been silent (V1b).
    NoSilenceRule, SILENCE_RULE
}
mutant! {
    /// Appends count before their flush (W1).
    AcknowledgeBeforeFlush, FLUSH_BEFORE_ACK
}
mutant! {
    /// A leader without contact or lease goes on (F3).
    NoResign, RESIGN
}
