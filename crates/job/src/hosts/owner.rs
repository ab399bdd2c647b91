//! The owner of each unit after workers were lost: a function of the losses alone, so it needs no messages. Knows no
//! connection and no file.

use super::control_msg::{ALL, Loss};

/// The workers that are alive after these losses, in their order.
pub(crate) fn living(workers: u32, losses: &[Loss]) -> Vec<u32> {
    (0..workers).filter(|&worker| losses.iter().all(|loss| loss.worker != worker)).collect()
}

/// The owner of a unit of a pass. Each worker alive at the start of the pass owns every n-th unit; the remaining
/// units of a worker lost since then are shared out to the workers alive at that time. `None`: a worker that is lost
/// now has done the unit.
///
/// A unit that was taken over is done when the pass is: if its new owner is lost in the same pass, the next owner
/// repeats it.
pub(crate) fn owner(workers: u32, losses: &[Loss], turn: u64, unit: u64) -> Option<u32> {
    let began = losses.iter().take_while(|loss| loss.turn < turn).count();
    let first = living(workers, &losses[..began]);
    let of =
        |living: &[u32], number: u64| living.get((number % living.len().max(1) as u64) as usize).copied();
    let native = of(&first, unit)?;
    let (mut owner, mut number) = (native, unit / first.len() as u64);
    for (at, loss) in losses.iter().enumerate().skip(began).filter(|(_, loss)| loss.turn == turn) {
        if loss.worker != owner {
            continue;
        }
        if loss.settled == ALL || owner == native && unit < loss.settled {
            return None;
        }
        let left = living(workers, &losses[..=at]);
        owner = of(&left, number)?;
        number /= left.len() as u64;
    }
    Some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_has_one_owner_who_lives_and_what_was_settled_has_none() {
        let loss = |worker, turn, settled| Loss { worker, turn, settled };
        for (workers, losses, turn) in [
            (3, vec![], 0),
            (3, vec![loss(1, 0, 10)], 0),
            (3, vec![loss(1, 0, 10)], 1),
            (4, vec![loss(1, 2, 10), loss(3, 2, 0)], 2),
            (4, vec![loss(3, 1, 7), loss(2, 2, 12), loss(1, 2, ALL)], 2),
            (2, vec![loss(1, 5, 0)], 9),
        ] {
            let living = living(workers, &losses);
            let mut counts = vec![0; workers as usize];
            for unit in 0..600 {
                match owner(workers, &losses, turn, unit) {
                    Some(owner) => {
                        assert!(living.contains(&owner), "{losses:?} {unit}");
                        counts[owner as usize] += 1;
                    }
                    None => assert!(losses.iter().any(|loss| loss.turn == turn && unit < loss.settled)),
                }
            }
            let least = 600 / workers as usize;
            assert!(living.iter().all(|&worker| counts[worker as usize] >= least), "{losses:?} {counts:?}");
        }
        // Workers that were not lost keep their units.
        let losses = [loss(1, 0, 30)];
        for unit in 0..100 {
            let (before, after) = (owner(3, &[], 0, unit), owner(3, &losses, 0, unit));
            assert!(before == Some(1) || before == after);
            assert_eq!(after.is_none(), before == Some(1) && unit < 30);
        }
    }
}
