//! Refusals of unary calls as gRPC statuses; shared with the observers.

pub use quorate_proto::status::{code, refusal, status, ERROR_TYPE};
