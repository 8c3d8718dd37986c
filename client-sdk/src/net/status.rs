//! From a gRPC status to a refusal.

use quorate_proto::refusal::{Reason, Refusal};
use quorate_proto::v1;

/// `google.rpc.Status`, as it travels in `grpc-status-details-bin`.
#[derive(Clone, PartialEq, prost::Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<AnyMessage>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, prost::Message)]
struct AnyMessage {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// The refusal in the details, or the best that the code alone says.
pub(crate) fn refusal(status: &tonic::Status, subject: &str) -> Refusal {
    if let Some(error) = details(status.details()) {
        return Refusal::from(error);
    }
    let (reason, action) = match status.code() {
        tonic::Code::Unavailable | tonic::Code::Unknown | tonic::Code::Internal | tonic::Code::Cancelled => {
            (Reason::Unreachable, "check that the process runs and that its address is right; then try again")
        }
        tonic::Code::DeadlineExceeded => (Reason::Deadline, "try again"),
        tonic::Code::ResourceExhausted => (Reason::Busy, "try again later"),
        tonic::Code::Unimplemented => (Reason::UnsupportedVersion, "use a node that offers this call, or a newer one"),
        tonic::Code::Unauthenticated => (Reason::Unauthenticated, "give valid credentials"),
        tonic::Code::PermissionDenied => (Reason::Forbidden, "ask an operator for the right"),
        tonic::Code::DataLoss => (Reason::Corrupt, "see the node's log"),
        _ => (Reason::InvalidArgument, "correct the request"),
    };
    Refusal::new(reason, describe(status), subject, action)
}

/// Message of a status and what lies behind it, in one line.
pub(crate) fn describe(status: &tonic::Status) -> String {
    // A refusal of Quorate names its stable reason.
    if let Some(refusal) = details(status.details()) {
        return Refusal::from(refusal).to_string();
    }
    if status.code() == tonic::Code::Unimplemented {
        return "this address does not offer the call; is it a data node? name the observers' addresses".to_owned();
    }
    let mut text = if status.message().is_empty() { status.code().to_string() } else { status.message().to_owned() };
    let mut source = std::error::Error::source(status);
    while let Some(error) = source {
        let part = error.to_string();
        if !text.contains(&part) {
            text = format!("{text}: {part}");
        }
        source = error.source();
    }
    text
}

fn details(bytes: &[u8]) -> Option<v1::Error> {
    if bytes.is_empty() {
        return None;
    }
    let status = <RpcStatus as prost::Message>::decode(bytes).ok()?;
    let any = status.details.iter().find(|any| any.type_url.ends_with("/quorate.v1.Error"))?;
    <v1::Error as prost::Message>::decode(any.value.as_slice()).ok()
}

#[cfg(test)]
pub(super) mod tests {
    use prost::Message;

    use super::*;

    /// A refusal as a server puts it into a status.
    pub(crate) fn status_of(refusal: Refusal) -> tonic::Status {
        let any = AnyMessage {
            type_url: "type.googleapis.com/quorate.v1.Error".into(),
            value: v1::Error::from(refusal).encode_to_vec(),
        };
        let status = RpcStatus { code: 9, message: String::new(), details: vec![any] };
        tonic::Status::with_details(tonic::Code::FailedPrecondition, "refused", status.encode_to_vec().into())
    }

    #[test]
    fn a_refusal_comes_back_out_of_the_status_details() {
        let refused = Refusal::new(Reason::OffsetOutOfRange, "no such offset", "default/orders/0, offset 7", "read on");
        assert_eq!(refusal(&status_of(refused.clone()), "ignored"), refused);
    }

    #[test]
    fn a_bare_status_becomes_a_typed_refusal() {
        assert_eq!(refusal(&tonic::Status::unavailable("gone"), "a:1").reason, Reason::Unreachable);
        assert_eq!(refusal(&tonic::Status::unimplemented(""), "a:1").reason, Reason::UnsupportedVersion);
    }
}
