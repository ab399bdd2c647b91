//! Synchronous steps of several workers over one session: a step is applied once, after the last report. The group's
//! own tests cover its refusals.

use super::*;

fn member(worker: u32) -> Member {
    Member { group: 77, worker, workers: 2, attempt: 0 }
}

impl Fixture {
    fn take(&mut self, worker: u32, step: u64, gradients: StepGradients<'_>) -> Answer<u64> {
        let (keys, counts) = ([1, 2], [1, 2]);
        let push = PushStep {
            table: 1,
            member: member(worker),
            number: 0,
            step,
            dim: DIM as u32,
            lr_scale: 1.0,
            keys: &keys,
            counts: &counts,
            gradients,
        };
        self.ask(&Request::PushStep(push), |reply| match reply {
            Reply::PushStep(state) if state.missing.is_empty() => state.applied,
            other => panic!("{other:?}"),
        })
    }

    fn whole(&mut self, worker: u32, step: u64) -> Answer<(u64, Vec<u32>)> {
        let (member, said) = (member(worker), Said::Whole { messages: 1 });
        self.ask(&Request::WaitStep(WaitStep { member, step, said }), |reply| match reply {
            Reply::WaitStep(state) => (state.applied, state.missing.to_vec()),
            other => panic!("{other:?}"),
        })
    }
}

#[test]
fn a_step_is_applied_once_with_the_sum_of_all_parts() {
    let (mut fixture, table) = (Fixture::new(), embedded());
    let grads: [[f32; 2 * DIM]; 2] = [[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], [0.5, -2.0, 1.0, -4.0, 0.25, 8.0]];
    let sums: Vec<f32> = grads[0].iter().zip(&grads[1]).map(|(a, b)| a + b).collect();
    let exact: Vec<i64> = grads[1].iter().map(|&g| (g * 1024.0) as i64).collect();
    for step in 1..4 {
        // Both orders of arrival.
        for turn in 0..2 {
            let worker = (turn + step as u32) % 2;
            let single = StepGradients::Single(&grads[worker as usize]);
            assert_eq!(fixture.take(worker, step, single), Ok(step - 1));
        }
        assert_eq!(fixture.whole(1, step), Ok((step - 1, vec![0])));
        assert_eq!(fixture.whole(1, step), Ok((step - 1, vec![0])));
        assert_eq!(fixture.whole(0, step), Ok((step, vec![])));
        assert_eq!(fixture.whole(1, step), Ok((step, vec![])));
        table.push_unique(&[1, 2], &[2, 4], &sums, PushScale::default()).unwrap();
        let mut rows = vec![0.0; 2 * DIM];
        table.pull(&[1, 2], store::Absent::Init, &mut rows, None).unwrap();
        assert_eq!(fixture.rows(&pull(&[1, 2])), Ok((rows, vec![])));
    }
    assert_eq!(fixture.take(0, 6, StepGradients::Single(&grads[0])), Err(Fault::BadRequest));
    // Sums that cannot be applied fail the step for all workers.
    let mut wrong = grads[0];
    wrong[4] = f32::NAN;
    fixture.take(0, 4, StepGradients::Single(&wrong)).unwrap();
    fixture.take(1, 4, StepGradients::Single(&grads[1])).unwrap();
    fixture.whole(1, 4).unwrap();
    for worker in [0, 1] {
        let found = fixture.whole(worker, 4);
        assert!(matches!(found, Err(Fault::BadGradient { key: 2, coordinate: 1, .. })), "{found:?}");
    }
    let fixed = StepGradients::Fixed { unit_log2: -10, sums: &exact };
    assert!(matches!(fixture.take(0, 4, fixed), Err(Fault::BadGradient { .. })));
    assert!(fixture.done(&pull(&[1])).is_ok());
}

#[test]
fn a_meeting_is_answered_at_once() {
    let mut fixture = Fixture::new();
    let mut meet = |worker, bytes: &[u8]| {
        let meet = Meet { member: member(worker), round: 1, name: "start", bytes };
        fixture.ask(&Request::Meet(meet), |reply| match reply {
            Reply::Meet(Met::Waiting(missing)) => Err(missing.to_vec()),
            Reply::Meet(Met::All(parts)) => Ok(parts.concat()),
            other => panic!("{other:?}"),
        })
    };
    assert_eq!(meet(1, b"right"), Ok(Err(vec![0])));
    assert_eq!(meet(0, b"left "), Ok(Ok(b"left right".to_vec())));
    assert_eq!(meet(1, b"right"), Ok(Ok(b"left right".to_vec())));
    let counters = fixture.state.counters();
    let of = |name: &str| counters.iter().find(|(other, _)| *other == name).unwrap().1;
    assert!(of("step_groups") == 1 && (10..1000).contains(&of("step_bytes")), "{counters:?}");
}
