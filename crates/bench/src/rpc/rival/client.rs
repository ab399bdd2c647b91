//! The gRPC clients: single calls, and one stream in both directions. The loops run inside the runtime, as those of its
//! users do; nothing is handed to another thread only to be timed.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};

use super::TUNED;
use super::proto::rival_client::RivalClient;
use super::proto::{PullReply, PullRequest};
use crate::result::BenchError;
use crate::rpc::batches::Batches;
use crate::rpc::call::{Call, Caller, Schedule};
use crate::rpc::options::Transport;

/// Requests that wait in a stream at most.
const QUEUE: usize = 64;

impl From<Status> for BenchError {
    fn from(status: Status) -> BenchError {
        BenchError::Grpc(status.to_string())
    }
}

/// A runtime of several threads.
pub(crate) fn runtime() -> Result<Runtime, BenchError> {
    let made = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    made.map_err(|error| BenchError::Grpc(format!("no runtime: {error}")))
}

/// A channel to a server, tuned or as the library makes it.
pub(crate) fn connect(runtime: &Runtime, address: SocketAddr, tuned: bool) -> Result<Channel, BenchError> {
    let failed = |error: tonic::transport::Error| BenchError::Grpc(format!("{address}: {error}"));
    let mut endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(failed)?;
    if tuned {
        endpoint = endpoint
            .initial_stream_window_size(TUNED.stream_window)
            .initial_connection_window_size(TUNED.connection_window)
            .max_frame_size(TUNED.frame)
            .tcp_nodelay(true);
    }
    runtime.block_on(endpoint.connect()).map_err(failed)
}

/// Request state of both clients.
#[derive(Clone)]
struct Asking {
    client: RivalClient<Channel>,
    /// The keys of every batch as a message has them, so that a request copies none.
    messages: Arc<Vec<Bytes>>,
    /// Bytes of the rows of an answer.
    rows_bytes: usize,
    transport: Transport,
}

impl Asking {
    fn new(channel: Channel, batches: &Batches, dim: usize, transport: Transport) -> Asking {
        let message = |batch| Bytes::copy_from_slice(bytemuck::cast_slice(batches.keys(batch)));
        Asking {
            client: RivalClient::new(channel).max_decoding_message_size(usize::MAX),
            messages: Arc::new((0..batches.len()).map(message).collect()),
            rows_bytes: batches.batch() * dim * size_of::<f32>(),
            transport,
        }
    }

    fn request(&self, call: usize) -> PullRequest {
        PullRequest { keys: self.messages[call % self.messages.len()].clone() }
    }

    fn check(&self, reply: &PullReply) -> Result<(), BenchError> {
        if reply.missing.is_empty() && reply.rows.len() == self.rows_bytes {
            return Ok(());
        }
        Err(BenchError::Answer(self.transport))
    }

    fn rows(&self, reply: &PullReply) -> Result<Vec<f32>, BenchError> {
        self.check(reply)?;
        Ok(reply.rows.chunks_exact(size_of::<f32>()).map(bytemuck::pod_read_unaligned).collect())
    }
}

/// Waits for what runs on a thread of the runtime, as in a program: `block_on` alone would poll it from outside.
fn within(
    runtime: &Runtime,
    working: impl Future<Output = Result<Vec<Call>, BenchError>> + Send + 'static,
) -> Result<Vec<Call>, BenchError> {
    runtime.block_on(runtime.spawn(working)).map_err(|error| BenchError::Grpc(error.to_string()))?
}

/// One call per pull.
pub(crate) struct UnaryCaller {
    runtime: Arc<Runtime>,
    asking: Asking,
    next: usize,
}

impl UnaryCaller {
    pub(crate) fn new(
        runtime: &Arc<Runtime>,
        channel: Channel,
        batches: &Batches,
        dim: usize,
        transport: Transport,
    ) -> UnaryCaller {
        let asking = Asking::new(channel, batches, dim, transport);
        UnaryCaller { runtime: Arc::clone(runtime), asking, next: 0 }
    }
}

/// One after the other: as many of these as calls are to be under way.
async fn ask_in_turn(
    mut asking: Asking,
    start: Instant,
    duration: Duration,
    mut next: usize,
    step: usize,
) -> Result<Vec<Call>, BenchError> {
    let mut calls = Vec::new();
    loop {
        let sent = start.elapsed();
        // One at least: who comes late to its turn has measured something, too.
        if sent >= duration && !calls.is_empty() {
            return Ok(calls);
        }
        let request = asking.request(next);
        let reply = asking.client.pull(request).await?;
        asking.check(reply.get_ref())?;
        calls.push(Call { sent, done: start.elapsed() });
        next += step;
    }
}

impl Caller for UnaryCaller {
    fn rows(&mut self, batch: usize) -> Result<Vec<f32>, BenchError> {
        let request = self.asking.request(batch);
        let reply = self.runtime.block_on(self.asking.client.pull(request))?;
        self.asking.rows(reply.get_ref())
    }

    fn closed(&mut self, in_flight: usize, duration: Duration) -> Result<Vec<Call>, BenchError> {
        let start = Instant::now();
        let mut tasks = Vec::new();
        for task in 0..in_flight {
            let asking = self.asking.clone();
            tasks.push(self.runtime.spawn(ask_in_turn(asking, start, duration, self.next + task, in_flight)));
        }
        let mut calls = Vec::new();
        for task in tasks {
            calls.extend(self.runtime.block_on(task).map_err(|error| BenchError::Grpc(error.to_string()))??);
        }
        calls.sort_by_key(|call| call.sent);
        self.next += calls.len();
        Ok(calls)
    }

    fn open(&mut self, per_s: f64, duration: Duration) -> Result<Vec<Call>, BenchError> {
        let schedule = Schedule::new(per_s, duration);
        let asking = self.asking.clone();
        let sending = async move {
            let start = Instant::now();
            let mut tasks = Vec::with_capacity(schedule.calls());
            while tasks.len() < schedule.calls() {
                if let Some(sent) = schedule.due_by(tasks.len(), start.elapsed()) {
                    let (mut asking, request) = (asking.clone(), asking.request(tasks.len()));
                    tasks.push(tokio::spawn(async move {
                        let reply = asking.client.pull(request).await?;
                        asking.check(reply.get_ref())?;
                        Ok::<_, BenchError>(Call { sent, done: start.elapsed() })
                    }));
                }
                // Awake all the time: timers are a thousand times coarser than the calls are apart.
                tokio::task::yield_now().await;
            }
            let mut calls = Vec::with_capacity(tasks.len());
            for task in tasks {
                calls.push(task.await.map_err(|error| BenchError::Grpc(error.to_string()))??);
            }
            Ok(calls)
        };
        within(&self.runtime, sending)
    }
}

/// All pulls in one stream, whose answers come in their order.
pub(crate) struct BidiCaller {
    runtime: Arc<Runtime>,
    asking: Asking,
    next: usize,
}

impl BidiCaller {
    pub(crate) fn new(runtime: &Arc<Runtime>, channel: Channel, batches: &Batches, dim: usize) -> BidiCaller {
        let asking = Asking::new(channel, batches, dim, Transport::GrpcBidi);
        BidiCaller { runtime: Arc::clone(runtime), asking, next: 0 }
    }
}

impl Asking {
    async fn stream(&mut self) -> Result<(mpsc::Sender<PullRequest>, Streaming<PullReply>), BenchError> {
        let (requests, waiting) = mpsc::channel(QUEUE);
        let replies = self.client.pull_all(ReceiverStream::new(waiting)).await?.into_inner();
        Ok((requests, replies))
    }

    async fn answer(&self, replies: &mut Streaming<PullReply>) -> Result<PullReply, BenchError> {
        let reply = replies.message().await?.ok_or(BenchError::Answer(self.transport))?;
        self.check(&reply)?;
        Ok(reply)
    }

    async fn send(&self, requests: &mpsc::Sender<PullRequest>, call: usize) -> Result<(), BenchError> {
        requests.send(self.request(call)).await.map_err(|_| BenchError::Answer(self.transport))
    }
}

impl Caller for BidiCaller {
    fn rows(&mut self, batch: usize) -> Result<Vec<f32>, BenchError> {
        let mut asking = self.asking.clone();
        self.runtime.block_on(async move {
            let (requests, mut replies) = asking.stream().await?;
            asking.send(&requests, batch).await?;
            let reply = asking.answer(&mut replies).await?;
            asking.rows(&reply)
        })
    }

    fn closed(&mut self, in_flight: usize, duration: Duration) -> Result<Vec<Call>, BenchError> {
        let (mut asking, first) = (self.asking.clone(), self.next);
        let working = async move {
            let (requests, mut replies) = asking.stream().await?;
            let start = Instant::now();
            let mut calls: Vec<Call> = Vec::new();
            let mut under_way = VecDeque::new();
            loop {
                let mut sent = start.elapsed();
                // One at least, as in [`ask_in_turn`].
                while under_way.len() < in_flight
                    && (sent < duration || calls.is_empty() && under_way.is_empty())
                {
                    asking.send(&requests, first + calls.len() + under_way.len()).await?;
                    under_way.push_back(sent);
                    sent = start.elapsed();
                }
                let Some(sent) = under_way.pop_front() else { return Ok(calls) };
                asking.answer(&mut replies).await?;
                calls.push(Call { sent, done: start.elapsed() });
            }
        };
        let calls = within(&self.runtime, working)?;
        self.next += calls.len();
        Ok(calls)
    }

    fn open(&mut self, per_s: f64, duration: Duration) -> Result<Vec<Call>, BenchError> {
        let schedule = Schedule::new(per_s, duration);
        let mut asking = self.asking.clone();
        let working = async move {
            let (requests, mut replies) = asking.stream().await?;
            let start = Instant::now();
            let sender = asking.clone();
            let sending = tokio::spawn(async move {
                let mut sent = 0;
                while sent < schedule.calls() {
                    if schedule.due_by(sent, start.elapsed()).is_some() {
                        sender.send(&requests, sent).await?;
                        sent += 1;
                    }
                    tokio::task::yield_now().await;
                }
                Ok::<_, BenchError>(())
            });
            let mut calls = Vec::with_capacity(schedule.calls());
            for call in 0..schedule.calls() {
                asking.answer(&mut replies).await?;
                calls.push(Call { sent: schedule.due(call), done: start.elapsed() });
            }
            sending.await.map_err(|error| BenchError::Grpc(error.to_string()))??;
            Ok(calls)
        };
        within(&self.runtime, working)
    }
}
