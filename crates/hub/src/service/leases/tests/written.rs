//! The journal's content for a restart after a crash, and the leases that trainers keep then.

use super::*;

#[test]
fn what_a_hub_must_know_after_a_crash_is_noted() {
    let mut leases = leases(0);
    let holder = LeaseHolder { name: "kept".to_owned(), numbers: vec![3], used: vec![] };
    leases.restore(0, &[holder], false);
    let came = |trainer: &str| vec![Record::Came { trainer: trainer.to_owned() }];
    let gone = |trainer: &str| vec![Record::Gone { trainer: trainer.to_owned() }];
    let comes = |leases: &mut LeaseTable, trainer: &str| {
        leases.subscribe(1, &subscribe(trainer, None, 0, &[])).unwrap();
        leases.take_records()
    };
    leases.subscribe(9, &subscribe("kept", None, 9, &[])).unwrap();
    assert_eq!(leases.take_records(), []);
    assert_eq!(comes(&mut leases, "a"), came("a"));
    leases.disconnect(0, 1);
    assert_eq!(comes(&mut leases, "a"), []);
    // A trainer that left or expired is not awaited after a crash.
    leases.leave(1, &[]);
    assert_eq!(leases.take_records(), gone("a"));
    assert_eq!(comes(&mut leases, "a"), came("a"));
    assert_eq!((leases.changes(), leases.changes_before_hand_out()), (3, 2));
    leases.disconnect(0, 1);
    leases.expire(300);
    assert_eq!(leases.take_records(), gone("a"));
    assert_eq!(comes(&mut leases, "a"), came("a"));
    leases.begin_pass(1);
    for number in 0..3 {
        leases.offer(minibatch(1, vec![number]));
        assert_eq!(ask(&mut leases, 1, &[]).1, Some(u64::from(number)));
    }
    ask(&mut leases, 1, &[0]);
    // Said again it is no change; and what was late is none.
    ask(&mut leases, 1, &[0, 2, 77]);
    let expected = [
        Record::Pass(PassStart { pass: 1, first: 0 }),
        Record::Used { trainer: "a".to_owned(), numbers: vec![0, 2] },
    ];
    assert_eq!(leases.take_records(), expected);
    assert_eq!((leases.changes(), leases.changes_before_hand_out()), (8, 4));
}

/// Its minibatches went to others, who may have used them: a hub that was killed does not know to whom before all are back.
#[test]
fn a_trainer_that_was_counted_on_no_more_comes_after_the_others_once_a_hub_was_killed() {
    let mut leases = leases(0);
    let holder = |name: &str| LeaseHolder { name: name.to_owned(), numbers: vec![], used: vec![] };
    leases.restore(0, &[holder("a"), holder("b")], false);
    // "c" had 0 before it was gone for too long; "b" has it.
    assert_eq!(leases.subscribe(1, &subscribe("c", None, 9, &[0])).unwrap().late, [0]);
    assert_eq!(leases.subscribe(2, &subscribe("a", None, 9, &[1])).unwrap().late, [0; 0]);
    assert_eq!(leases.subscribe(3, &subscribe("b", None, 9, &[0])).unwrap().late, [0; 0]);
    // It may once no other trainer can hold it.
    assert_eq!(leases.subscribe(4, &subscribe("d", None, 9, &[2])).unwrap().late, [0; 0]);
}
