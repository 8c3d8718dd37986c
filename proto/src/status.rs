//! Refusals of unary calls: a gRPC status whose details hold `google.rpc.Status` with a `quorate.v1.Error`.

use bytes::Bytes;
use prost::Message;
use tonic::{Code, Status};

use crate::refusal::{Reason, Refusal};
use crate::v1;

/// Type URL of the error in the details.
pub const ERROR_TYPE: &str = "type.googleapis.com/quorate.v1.Error";

/// `google.rpc.Status`, as far as it is used here.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<Any>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct Any {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

/// The gRPC code that fits a reason best, for clients that know only those.
#[must_use]
pub fn code(reason: Reason) -> Code {
    match reason {
        Reason::NotLeader
        | Reason::NoLeader
        | Reason::Fenced
        | Reason::Handoff
        | Reason::Degraded
        | Reason::Unreachable => Code::Unavailable,
        Reason::Busy | Reason::Quota | Reason::StorageFull => Code::ResourceExhausted,
        Reason::TooLarge | Reason::BadBatch | Reason::InvalidArgument => Code::InvalidArgument,
        Reason::Expired | Reason::Deadline => Code::DeadlineExceeded,
        Reason::OffsetOutOfRange => Code::OutOfRange,
        Reason::UnknownTopic => Code::NotFound,
        Reason::AlreadyExists => Code::AlreadyExists,
        Reason::Corrupt => Code::DataLoss,
        Reason::Unauthenticated => Code::Unauthenticated,
        Reason::Forbidden => Code::PermissionDenied,
        Reason::UnsupportedVersion => Code::Unimplemented,
        _ => Code::FailedPrecondition,
    }
}

/// The refusal as a status.
#[must_use]
pub fn status(refusal: Refusal) -> Status {
    let code = code(refusal.reason);
    let message = refusal.to_string();
    let error = v1::Error::from(refusal);
    let details = RpcStatus {
        code: code.into(),
        message: message.clone(),
        details: vec![Any { type_url: ERROR_TYPE.to_owned(), value: error.encode_to_vec().into() }],
    };
    Status::with_details(code, message, details.encode_to_vec().into())
}

/// The refusal in a status made by [`status`].
#[must_use]
pub fn refusal(status: &Status) -> Option<Refusal> {
    let details = RpcStatus::decode(status.details()).ok()?.details;
    let any = details.into_iter().find(|any| any.type_url == ERROR_TYPE)?;
    v1::Error::decode(any.value).ok().map(Refusal::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_refusal_comes_back_from_its_status() {
        let sent = Refusal::new(Reason::NoLeader, "nobody leads", "default/t/0", "try again")
            .retry_after(Duration::from_millis(100))
            .of_unknown_fate();
        let status = status(sent.clone());
        assert_eq!(status.code(), Code::Unavailable);
        assert_eq!(refusal(&status), Some(sent));
    }

    #[test]
    fn a_stranger_s_status_holds_no_refusal() {
        assert_eq!(refusal(&Status::internal("x")), None);
    }
}
