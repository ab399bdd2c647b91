//! One worker's connections to the servers where the group meets. Does not know what is summed there.
//!
//! A worker reports a step to the servers only when all of them have its part. A worker that dies thus leaves a step
//! that is decided nowhere, and is repeated, or one whose parts are everywhere, and is completed
//! ([`Servers::recover`]).

use std::sync::Arc;
use std::time::{Duration, Instant};

use sanderling_store::PushScale;
use sanderling_sync::{CancelFlags, Participant, Progress, StepReport};
use sanderling_wire::{self as wire, Meet, Member, Met, PushStep, Reply, Request, StepGradients, WaitStep};

use super::{Handed, check_cancel, nap};
use crate::cluster::Cluster;
use crate::engine::{Engine, Message, Subject};
use crate::error::ClientError;
use crate::key_partition::KeyPartition;
use crate::remote::{RemoteTable, check_tables};
use crate::rpc_state::{Needs, Peer};
use sanderling_store::gather;

#[derive(Debug)]
pub(super) struct Servers {
    cluster: Arc<Cluster>,
    engine: Engine,
    tables: Vec<RemoteTable>,
    member: Member,
    /// By server, the start that knows this group.
    needs: Vec<Needs>,
    /// By server.
    handed: Vec<Handed>,
    announced: Option<Announced>,
    partition: KeyPartition,
    counts: Vec<u32>,
    singles: Vec<f32>,
    sums: Vec<i64>,
}

/// A step of which all servers are told that it is handed in, and what they answer.
#[derive(Debug)]
struct Announced {
    step: u64,
    answers: Answers,
    is_settled: bool,
}

/// The servers' answers about a step, in the order in which they were told.
#[derive(Debug)]
struct Answers {
    found: Vec<Option<Progress>>,
    failed: Option<ClientError>,
}

impl Servers {
    pub(super) fn new(
        cluster: &Arc<Cluster>,
        tables: &[RemoteTable],
        group: u64,
        participant: Participant,
    ) -> Result<Servers, ClientError> {
        check_tables(cluster, tables)?;
        let engine = cluster.recorded_engine()?;
        let Participant { worker, workers, attempt } = participant;
        let servers = engine.servers();
        Ok(Servers {
            cluster: Arc::clone(cluster),
            engine,
            tables: tables.to_vec(),
            member: Member { group, worker, workers, attempt },
            needs: vec![Needs::Nothing; servers],
            handed: (0..servers).map(|_| Handed::default()).collect(),
            announced: None,
            partition: KeyPartition::default(),
            counts: Vec::new(),
            singles: Vec::new(),
            sums: Vec::new(),
        })
    }

    pub(super) fn tables(&self) -> &[RemoteTable] {
        &self.tables
    }

    pub(super) fn table(&self, at: usize) -> Option<&RemoteTable> {
        self.tables.get(at)
    }

    pub(super) fn place_of(&mut self, table: &RemoteTable) -> Result<usize, ClientError> {
        if let Some(place) = self.tables.iter().position(|other| other.is_same(table)) {
            return Ok(place);
        }
        check_tables(&self.cluster, std::slice::from_ref(table))?;
        self.tables.push(table.clone());
        Ok(self.tables.len() - 1)
    }

    /// Address of a server.
    pub(super) fn name(&self, server: usize) -> String {
        self.engine.addresses()[server].clone()
    }

    /// The last step that is applied, on all servers, and the next meeting. What the attempt before said of a step that is
    /// decided nowhere is taken back.
    pub(super) fn recover(&mut self, timeout: Duration) -> Result<(u64, u64), ClientError> {
        let found = self.say_all(&self.all(), 0, |_| StepReport::Nothing)?;
        for (server, needs) in self.needs.iter_mut().enumerate() {
            *needs = self.engine.connections.peer(server).map_or(Needs::Nothing, Peer::memory);
        }
        let (mut step, mut attempt) = (0, 0);
        for progress in &found {
            if progress.decided > step {
                (step, attempt) = (progress.decided, progress.attempt);
            }
        }
        let said = |server: usize| {
            if found[server].decided < step {
                StepReport::WholeBefore { attempt }
            } else {
                StepReport::Nothing
            }
        };
        self.wait(step, timeout, &CancelFlags::default(), said)?;
        Ok((step, found[0].round))
    }

    pub(super) fn push(
        &mut self,
        step: u64,
        table: usize,
        keys: &[u64],
        counts: &[u32],
        gradients: StepGradients<'_>,
        scale: PushScale,
    ) -> Result<(), ClientError> {
        let pushed = self.try_push(step, table, keys, counts, gradients, scale);
        if pushed.is_err() {
            self.handed.iter_mut().for_each(|handed| *handed = Handed::default());
        }
        pushed
    }

    fn try_push(
        &mut self,
        step: u64,
        table: usize,
        keys: &[u64],
        counts: &[u32],
        gradients: StepGradients<'_>,
        scale: PushScale,
    ) -> Result<(), ClientError> {
        self.settle_announced();
        let Servers { engine, tables, member, needs, handed, partition, .. } = self;
        let table = &tables[table];
        partition.assign(&engine.placement, table.home(), keys);
        let dim = table.dim();
        let words = if matches!(gradients, StepGradients::Fixed { .. }) { 2 } else { 1 };
        let rows = engine.rows_per_message(words * dim + 3);
        let mut failed = None;
        let mut each = |_: &Message, result: Result<Reply<'_>, ClientError>| {
            if let Err(error) = result {
                failed.get_or_insert(error);
            }
        };
        for (server, share) in partition.shares().enumerate() {
            for (keys, positions) in share.keys.chunks(rows).zip(share.positions.chunks(rows)) {
                gather(positions, 1, counts, &mut self.counts);
                let gradients = match gradients {
                    StepGradients::Single(values) => {
                        gather(positions, dim, values, &mut self.singles);
                        StepGradients::Single(&self.singles)
                    }
                    StepGradients::Fixed { unit_log2, sums } => {
                        gather(positions, dim, sums, &mut self.sums);
                        StepGradients::Fixed { unit_log2, sums: &self.sums }
                    }
                };
                let number = table.number(server);
                let push = PushStep {
                    table: number.table,
                    member: *member,
                    number: handed[server].next(step),
                    step,
                    dim: dim as u32,
                    lr_scale: scale.lr_scale,
                    keys,
                    counts: &self.counts,
                    gradients,
                };
                let message = Message::about(table, 0, 0, server);
                engine.begin(message, needs[server], &Request::PushStep(push), &mut each)?;
            }
        }
        engine.settle(&mut each);
        failed.map_or(Ok(()), Err)
    }

    /// Says that all is handed in, and waits for no answer.
    pub(super) fn announce(&mut self, step: u64) {
        self.settle_announced();
        let (all, said) = (self.all(), self.whole(step));
        let mut answers = self.begin_saying(&all, step, said);
        self.engine.send(&mut |message, result| answers.note(message, result));
        self.announced = Some(Announced { step, answers, is_settled: false });
    }

    /// Every server.
    fn all(&self) -> Vec<usize> {
        (0..self.engine.servers()).collect()
    }

    fn whole(&self, step: u64) -> impl Fn(usize) -> StepReport + use<> {
        let messages: Vec<u32> = self.handed.iter().map(|handed| handed.of(step)).collect();
        move |server| StepReport::Whole { messages: messages[server] }
    }

    /// Waits for what the servers answer to what was announced, so that nothing else is taken for it.
    fn settle_announced(&mut self) {
        let Servers { engine, announced, .. } = self;
        let Some(announced) = announced.as_mut().filter(|announced| !announced.is_settled) else { return };
        engine.settle(&mut |message, result| announced.answers.note(message, result));
        announced.is_settled = true;
    }

    /// The servers' answers to the announcement of this step, if it was announced.
    fn take_announced(&mut self, step: u64) -> Option<Result<Vec<Progress>, ClientError>> {
        self.settle_announced();
        let Announced { answers, .. } = self.announced.take().filter(|announced| announced.step == step)?;
        Some(answers.whole())
    }

    /// Says that all is handed in, and waits until the step is applied on all servers.
    pub(super) fn wait_applied(
        &mut self,
        step: u64,
        timeout: Duration,
        cancel: &CancelFlags,
    ) -> Result<(), ClientError> {
        self.wait(step, timeout, cancel, self.whole(step))
    }

    fn wait(
        &mut self,
        step: u64,
        timeout: Duration,
        cancel: &CancelFlags,
        said: impl Fn(usize) -> StepReport,
    ) -> Result<(), ClientError> {
        let start = Instant::now();
        let mut waiting = self.all();
        loop {
            let found = match self.take_announced(step) {
                Some(found) => found?,
                None => self.say_all(&waiting, step, &said)?,
            };
            let behind = waiting.iter().zip(&found).find(|(_, progress)| progress.applied < step);
            let Some((&server, progress)) = behind else { return Ok(()) };
            if start.elapsed() >= timeout {
                let (place, what, workers) =
                    (self.name(server), format!("step {step}"), progress.missing.clone());
                return Err(ClientError::Awaited { place, what, workers, timeout });
            }
            let mut found = found.iter();
            waiting.retain(|_| found.next().is_some_and(|progress| progress.applied < step));
            check_cancel(cancel, || self.name(0), || format!("step {step}"))?;
            nap(start);
        }
    }

    /// Says something of a step to one server.
    pub(super) fn say(
        &mut self,
        server: usize,
        step: u64,
        said: StepReport,
    ) -> Result<Progress, ClientError> {
        let found = self.say_all(&[server], step, |_| said)?.pop();
        found.ok_or_else(|| self.engine.misfit(server))
    }

    /// Says something of a step to several servers at once; their answers, in the same order.
    fn say_all(
        &mut self,
        servers: &[usize],
        step: u64,
        said: impl Fn(usize) -> StepReport,
    ) -> Result<Vec<Progress>, ClientError> {
        self.settle_announced();
        let mut answers = self.begin_saying(servers, step, said);
        self.engine.settle(&mut |message, result| answers.note(message, result));
        answers.whole()
    }

    fn begin_saying(&mut self, servers: &[usize], step: u64, said: impl Fn(usize) -> StepReport) -> Answers {
        let Servers { engine, member, needs, .. } = self;
        let mut answers = Answers { found: vec![None; servers.len()], failed: None };
        let ask = |server: usize| {
            let said = match said(server) {
                StepReport::Nothing => wire::Said::Nothing,
                StepReport::Whole { messages } => wire::Said::Whole { messages },
                StepReport::WholeBefore { attempt } => wire::Said::WholeBefore { attempt },
                StepReport::Finished => wire::Said::Finished,
            };
            (needs[server], Request::WaitStep(WaitStep { member: *member, step, said }))
        };
        engine.begin_asking(servers, &Subject::Nothing, ask, &mut |message, result| {
            answers.note(message, result);
        });
        answers
    }

    /// Bytes that each may bring to a meeting, if so many of the workers bring any.
    pub(super) fn part_bytes_max(&self, givers: u32) -> usize {
        Met::part_bytes_max(
            self.engine.connections.frame_bytes_max(),
            self.member.workers as usize,
            givers as usize,
        )
    }

    /// Comes to a meeting, at the first server, and asks until all are there; who is missing then.
    pub(super) fn meet(
        &mut self,
        round: u64,
        name: &str,
        bytes: &[u8],
        until: Instant,
        cancel: &CancelFlags,
    ) -> Result<Result<Vec<Vec<u8>>, Vec<u32>>, ClientError> {
        let start = Instant::now();
        loop {
            let met = self.ask_meeting(round, name, bytes)?;
            if met.is_ok() || Instant::now() >= until {
                return Ok(met);
            }
            check_cancel(cancel, || self.name(0), || format!("meeting {name:?}"))?;
            nap(start);
        }
    }

    fn ask_meeting(
        &mut self,
        round: u64,
        name: &str,
        bytes: &[u8],
    ) -> Result<Result<Vec<Vec<u8>>, Vec<u32>>, ClientError> {
        self.settle_announced();
        let Servers { engine, member, needs, .. } = self;
        let request = Request::Meet(Meet { member: *member, round, name, bytes });
        engine.ask(0, &Subject::Nothing, needs[0], &request, |reply| match reply {
            Reply::Meet(Met::Waiting(missing)) => Some(Err(missing.to_vec())),
            Reply::Meet(Met::All(parts)) if parts.len() == member.workers as usize => {
                Some(Ok(parts.into_iter().map(<[u8]>::to_vec).collect()))
            }
            _ => None,
        })
    }
}

impl Answers {
    fn note(&mut self, message: &Message, result: Result<Reply<'_>, ClientError>) {
        match result {
            Ok(Reply::WaitStep(state)) => self.found[message.part] = Some(progress_of(&state)),
            Ok(_) => {}
            Err(error) => _ = self.failed.get_or_insert(error),
        }
    }

    /// All answers, or what failed first.
    fn whole(self) -> Result<Vec<Progress>, ClientError> {
        self.failed.map_or_else(|| Ok(self.found.into_iter().flatten().collect()), Err)
    }
}

fn progress_of(state: &wire::StepState<'_>) -> Progress {
    let &wire::StepState { applied, decided, attempt, finished, round, missing } = state;
    Progress { applied, decided, attempt, finished, round, missing: missing.to_vec() }
}
