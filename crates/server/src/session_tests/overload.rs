//! A server that is asked for more than it can do: what it answers in time stays at what it can do. Time is simulated: a pull takes
//! a fixed service time and a refusal a fixed shorter one, so that nothing depends on this machine.

use std::collections::VecDeque;

use super::*;

/// How many times what it can do the server is asked for.
const OVERLOAD: f64 = 3.5;
const DEADLINE: Duration = Duration::from_millis(200);
/// Time that the worker takes for a pull, and for a refusal.
const SERVICE: Duration = Duration::from_millis(2);
const REFUSAL: Duration = Duration::from_micros(20);
const CONNECTIONS: usize = 4;
/// Calls under way per connection: together they take longer than the deadline.
const CALLS_MAX: usize = 64;
const LENGTH: Duration = Duration::from_secs(20);
/// A client tells its clock so often.
const SENT_AT_EVERY: Duration = Duration::from_millis(1);

/// A client with one connection and its session, as the load generator behaves: a call that is due begins when there is room,
/// unless half of its deadline is over; a call that is refused as busy is made again as long as its deadline allows.
struct Client {
    fixture: Fixture,
    epoch: Instant,
    /// Due times of calls that have not begun.
    due: VecDeque<Duration>,
    /// Sent times and due times of requests that are not read.
    unread: VecDeque<(Duration, Duration)>,
    /// Nothing is sent before this.
    sends_from: Duration,
    told: Option<Duration>,
    served: u64,
}

/// The calls of a simulation by their end.
#[derive(Debug, Default)]
struct Ends {
    /// Times from due to answered, of calls that were answered in time.
    in_time: Vec<Duration>,
    late: u64,
    busy: u64,
    not_begun: u64,
}

impl Client {
    fn new(features: Features) -> Client {
        let fixture = Fixture::of(&Config::default(), features);
        let epoch = fixture.start;
        let (due, unread) = (VecDeque::new(), VecDeque::new());
        Client { fixture, epoch, due, unread, sends_from: Duration::ZERO, told: None, served: 0 }
    }

    /// Begins the calls for which there is room.
    fn send(&mut self, now: Duration, ends: &mut Ends) {
        while self.unread.len() < CALLS_MAX
            && let Some(due) = self.due.front().copied()
        {
            let sent = due.max(self.sends_from);
            if sent > now {
                return;
            }
            self.due.pop_front();
            if sent > due + DEADLINE / 2 {
                ends.not_begun += 1;
            } else {
                self.unread.push_back((sent, due));
            }
        }
    }

    /// Has its next request read; returns when the worker is done with it.
    fn serve(&mut self, now: Duration, ends: &mut Ends) -> Duration {
        let (sent, due) = self.unread.pop_front().expect("a request");
        self.fixture.start = self.epoch + now;
        let tells = self.fixture.session.agreed().features.has(Features::SENT_AT);
        if tells && self.told.is_none_or(|told| sent >= told + SENT_AT_EVERY) {
            // The clocks need not agree.
            self.fixture.encode(&Request::SentAt(7_000_000 + sent.as_micros() as u64));
            assert!(matches!(self.fixture.handle(), Ok(Handled::NoReply)));
            self.told = Some(sent);
        }
        self.fixture.deadline_us = (due + DEADLINE).saturating_sub(sent).as_micros() as u32;
        let answer = self.fixture.rows(&pull(&[1, 2, 3]));
        let done = now + if answer.is_ok() { SERVICE } else { REFUSAL };
        self.sends_from = self.sends_from.max(done);
        match answer {
            Ok(_) if done <= due + DEADLINE => ends.in_time.push(done - due),
            Ok(_) | Err(Fault::DeadlineExceeded) => ends.late += 1,
            Err(Fault::Busy { retry_after_us }) => {
                self.sends_from = done + Duration::from_micros(retry_after_us);
                ends.busy += 1;
                self.due.push_front(due);
            }
            Err(fault) => panic!("{fault:?}"),
        }
        self.served += if done == now + SERVICE { 1 } else { 0 };
        done
    }
}

/// Exponential times between calls (inverse transform), from a fixed sequence of numbers.
fn poisson(seed: u64, per_s: f64) -> impl Iterator<Item = Duration> {
    let (mut state, mut at) = (seed, 0.0);
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let unit = ((state >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
        at -= unit.ln() / per_s;
        Duration::from_secs_f64(at)
    })
}

fn simulate(features: Features, seed: u64) -> Ends {
    let mut clients: Vec<Client> = (0..CONNECTIONS).map(|_| Client::new(features)).collect();
    let per_s = OVERLOAD / SERVICE.as_secs_f64();
    for (at, due) in poisson(seed, per_s).take_while(|due| *due < LENGTH).enumerate() {
        clients[at % CONNECTIONS].due.push_back(due);
    }
    let (mut now, mut ends) = (Duration::ZERO, Ends::default());
    while now < LENGTH {
        clients.iter_mut().for_each(|client| client.send(now, &mut ends));
        // Of the ready connections the one with the fewest bytes.
        let ready = clients.iter_mut().filter(|client| !client.unread.is_empty());
        now = match ready.min_by_key(|client| client.served) {
            Some(client) => client.serve(now, &mut ends),
            None => now + REFUSAL,
        };
    }
    ends
}

#[test]
fn what_is_answered_in_time_stays_at_capacity_beyond_it() {
    let capacity = LENGTH.as_secs_f64() / SERVICE.as_secs_f64();
    for seed in 1..=5 {
        let mut ends = simulate(Features::SENT_AT, seed);
        ends.in_time.sort_unstable();
        let goodput = ends.in_time.len() as f64 / capacity;
        let p99 = ends.in_time[ends.in_time.len() * 99 / 100];
        assert!(goodput >= 0.9 && ends.busy > 0, "seed {seed}: {goodput} {} {}", ends.busy, ends.late);
        assert!(p99 <= DEADLINE * 3 / 4, "seed {seed}: {p99:?}");

        // A server that does not know how long requests waited answers them, but too late.
        let ends = simulate(Features::NONE, seed);
        let goodput = ends.in_time.len() as f64 / capacity;
        assert!(goodput < 0.5 && ends.busy == 0, "seed {seed}: {goodput} {}", ends.late);
    }
}
