//! A server's side of frames over gRPC: a port of its own, whose streams are connections of the server. Admits everybody:
//! the token is in the hello, as it is for all connections.

use std::sync::Arc;
use std::time::Duration;

use sanderling_server::{Control, PortListener};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

use super::{Carriers, Pieces, receive};
use crate::frames_proto::Piece;
use crate::frames_proto::frames_server::{Frames, FramesServer};
use crate::guest::{self, Guest};
use crate::limit::{
    CONNECTION_AGE_MAX, CONNECTION_WINDOW_BYTES, FRAME_CONNECTIONS_MAX, FRAME_MESSAGE_BYTES_MAX,
    FRAME_STREAMS_MAX, HEADERS_BYTES_MAX, HTTP_FRAME_BYTES, KEEPALIVE_EVERY, KEEPALIVE_WITHIN,
    STREAM_WINDOW_BYTES,
};
use crate::line::Line;
use crate::plane::PlaneError;
use crate::service::refused;
use crate::web_page::is_from_page;

/// A port that takes frames over gRPC. Dropping it ends it without waiting for what is under way.
#[derive(Debug)]
pub struct FrameServer {
    carriers: Carriers,
    accepting: JoinHandle<()>,
    serving: JoinHandle<Result<(), tonic::transport::Error>>,
    end: oneshot::Sender<()>,
}

impl FrameServer {
    /// Carries frames between the clients of a port and a server, from now on.
    ///
    /// # Errors
    /// Certificate and key do not fit, or the system has no resources.
    pub fn start(listening: PortListener, control: Control) -> Result<FrameServer, PlaneError> {
        let tls = listening.tls.as_ref().map(guest::acceptor).transpose().map_err(PlaneError::Tls)?;
        let carriers = Carriers::start()?;
        let listener = {
            let _inside = carriers.runtime().enter();
            TcpListener::from_std(listening.listener)?
        };
        let (guests, incoming) = mpsc::channel::<std::io::Result<Guest>>(1);
        let places = control.places().min(FRAME_CONNECTIONS_MAX);
        let accepting = carriers.runtime().spawn(guest::accept(listener, tls, places, guests));
        let (end, ended) = oneshot::channel::<()>();
        let service = FramesServer::new(Carrying(control)).max_decoding_message_size(FRAME_MESSAGE_BYTES_MAX);
        let serving = Server::builder()
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(HTTP_FRAME_BYTES)
            .max_concurrent_streams(FRAME_STREAMS_MAX)
            // Streams that are under way then go on; it is for connections that have none.
            .max_connection_age(CONNECTION_AGE_MAX)
            .http2_max_header_list_size(HEADERS_BYTES_MAX)
            .http2_keepalive_interval(Some(KEEPALIVE_EVERY))
            .http2_keepalive_timeout(Some(KEEPALIVE_WITHIN))
            .add_service(service)
            .serve_with_incoming_shutdown(ReceiverStream::new(incoming), async {
                // Dropped or sent, it is the end.
                let _ = ended.await;
            });
        let serving = carriers.runtime().spawn(serving);
        Ok(FrameServer { carriers, accepting, serving, end })
    }

    /// Ends it, after the streams that are under way if they are done by then. Call it when the server has ended.
    pub fn stop(self, within: Duration) {
        let FrameServer { carriers, accepting, serving, end } = self;
        accepting.abort();
        let _ = end.send(());
        // Too late or not, what remains is cut off.
        let _ = carriers.runtime().block_on(async { tokio::time::timeout(within, serving).await });
    }
}

/// The service.
struct Carrying(Control);

#[tonic::async_trait]
impl Frames for Carrying {
    type CarryStream = tokio_stream::adapters::Map<Pieces, fn(Piece) -> Result<Piece, Status>>;

    async fn carry(&self, request: Request<Streaming<Piece>>) -> Result<Response<Self::CarryStream>, Status> {
        if is_from_page(request.metadata().as_ref()) {
            return Err(Status::permission_denied("this is not for web pages"));
        }
        let line = request.extensions().get::<Line>();
        let peer = match line.and_then(Line::peer) {
            Some(peer) => format!("grpc://{peer}"),
            None => "grpc".to_owned(),
        };
        let relay = self.0.carry(peer, line.is_some_and(Line::is_of_this_user)).map_err(refused)?;
        let stream = line.map(|line| Arc::new(line.stream()));
        let pieces = Pieces(relay.outgoing, stream.clone());
        tokio::spawn(receive(request.into_inner(), relay.incoming, stream));
        Ok(Response::new(tokio_stream::StreamExt::map(pieces, Ok)))
    }
}

#[cfg(test)]
mod tests {
    use sanderling_server::{Config, Server, listen_for_grpc};
    use tokio_stream::wrappers::ReceiverStream;
    use tonic::transport::Endpoint;

    use super::*;
    use crate::frames_proto::frames_client::FramesClient;

    /// Far longer than anything takes that goes well.
    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn a_stream_that_is_cut_off_leaves_the_others_of_its_connection() {
        let listen = vec!["127.0.0.1:0".parse().expect("an address")];
        let config = Config { listen, local: false, ..Config::default() };
        let server = Server::start(&config, |_| {}).expect("it starts");
        let any = "grpc://127.0.0.1:0".parse().expect("an address");
        let listening = listen_for_grpc(&config, &any).expect("a port");
        let url = format!("http://{}", listening.address);
        let frames = FrameServer::start(listening, server.control()).expect("it starts");
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .expect("a runtime");
        let talk = async {
            let channel = Endpoint::try_from(url).expect("a url").connect().await.expect("it listens");
            let mut client = FramesClient::new(channel);
            // What is no frame: the server ends the stream, and this side does not.
            let no_frame = || Piece { bytes: vec![7; 64].into() };
            let mut streams = Vec::new();
            for _ in 0..2 {
                let (says, pieces) = mpsc::channel(1);
                let carried = client.carry(ReceiverStream::new(pieces)).await.expect("carried");
                streams.push((says, carried.into_inner()));
            }
            for (says, mut answers) in streams {
                says.send(no_frame()).await.expect("the stream is there");
                while answers.message().await.expect("an end, and no cut").is_some() {}
                // It is given up.
                says.closed().await;
            }
        };
        runtime.block_on(async { tokio::time::timeout(LONG, talk).await }).expect("in time");
        frames.stop(Duration::ZERO);
    }
}
