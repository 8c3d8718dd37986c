//! Sessions with data nodes, and their supervisors' exit notices (protocol S2).

use std::pin::Pin;
use std::time::Duration;

use quorate_consensus::observer::ObserverEvent;
use quorate_proto::control::SessionUp;
use quorate_proto::convert::exit_notice_from_wire;
use quorate_proto::ids::Ticket;
use quorate_proto::internal::session_server::{Session, SessionServer};
use quorate_proto::internal::{self, ExitNoticeRequest, ExitNoticeResponse};
use quorate_proto::refusal::Reason;
use quorate_proto::status::status;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{Stream, StreamExt};
use tonic::{Request as Call, Response, Status, Streaming};

use super::{Loop, OpenedSession, Request};

/// Reports of thousands of replicas in one heartbeat.
const MESSAGE_MAX: usize = 8 << 20;
/// Pause before the loop is asked again whether it has room.
const ROOM_PAUSE: Duration = Duration::from_millis(1);
/// Answers that wait for one supervisor.
const ANSWERS: usize = 16;

type Downs<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The `Session` service.
pub struct SessionService {
    core: Loop,
}

impl SessionService {
    /// Ready for a tonic router.
    #[must_use]
    pub fn server(core: Loop) -> SessionServer<Self> {
        SessionServer::new(Self { core }).max_decoding_message_size(MESSAGE_MAX).max_encoding_message_size(MESSAGE_MAX)
    }
}

/// Feeds a node's messages to the loop until either side ends the session.
async fn pump(core: Loop, session: Ticket, mut up: Streaming<internal::SessionUp>, mut ended: oneshot::Receiver<()>) {
    loop {
        let message = tokio::select! {
            _ = &mut ended => break,
            message = up.message() => message,
        };
        let Ok(Some(message)) = message else { break };
        match SessionUp::try_from(message) {
            Ok(message) => {
                while !core.has_room() {
                    tokio::time::sleep(ROOM_PAUSE).await;
                }
                core.tell(Request::Session(ObserverEvent::Session { session, message: Box::new(message) }));
            }
            Err(error) => {
                core.tell(Request::BadSession(session, error.to_string()));
                break;
            }
        }
    }
    core.tell(Request::Session(ObserverEvent::SessionClosed { session }));
}

/// One notice; `None` if the message only keeps the stream warm.
async fn notice(core: &Loop, request: ExitNoticeRequest) -> Option<ExitNoticeResponse> {
    let incarnation = request.incarnation;
    let answer = |error: Option<String>| ExitNoticeResponse {
        accepted: error.is_none(),
        logged: error.is_none(),
        error: error.unwrap_or_default(),
        incarnation,
    };
    let (cluster, notice) = match exit_notice_from_wire(request) {
        Ok(notice) => notice,
        Err(error) => return Some(answer(Some(error.to_string()))),
    };
    if cluster != core.config.cluster() {
        let text = format!("{}: this is cluster {}", Reason::ClusterMismatch.as_str_name(), core.config.cluster());
        return Some(answer(Some(text)));
    }
    let notice = notice?;
    let (reply, answered) = oneshot::channel();
    core.tell(Request::Exit(notice, reply));
    let result = core.answer(answered).await.and_then(|result| result);
    Some(answer(result.err().map(|refusal| refusal.to_string())))
}

#[tonic::async_trait]
impl Session for SessionService {
    type OpenStream = Downs<internal::SessionDown>;
    type SuperviseStream = Downs<ExitNoticeResponse>;

    async fn open(&self, call: Call<Streaming<internal::SessionUp>>) -> Result<Response<Self::OpenStream>, Status> {
        let (reply, opened) = oneshot::channel();
        self.core.ask(Request::OpenSession(reply)).map_err(status)?;
        let OpenedSession { session, down, ended } = self.core.answer(opened).await.map_err(status)?;
        tokio::spawn(pump(self.core.clone(), session, call.into_inner(), ended));
        Ok(Response::new(Box::pin(ReceiverStream::new(down).map(Ok))))
    }

    async fn exit_notice(&self, call: Call<ExitNoticeRequest>) -> Result<Response<ExitNoticeResponse>, Status> {
        let warm = ExitNoticeResponse { accepted: true, ..ExitNoticeResponse::default() };
        Ok(Response::new(notice(&self.core, call.into_inner()).await.unwrap_or(warm)))
    }

    async fn supervise(
        &self,
        call: Call<Streaming<ExitNoticeRequest>>,
    ) -> Result<Response<Self::SuperviseStream>, Status> {
        let (answers, out) = mpsc::channel(ANSWERS);
        let core = self.core.clone();
        let mut requests = call.into_inner();
        tokio::spawn(async move {
            while let Ok(Some(request)) = requests.message().await {
                // Each notice by itself: one that waits for a majority must not hold up its repetition.
                let (core, answers) = (core.clone(), answers.clone());
                tokio::spawn(async move {
                    if let Some(answer) = notice(&core, request).await {
                        let _ = answers.send(Ok(answer)).await;
                    }
                });
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(out))))
    }
}
