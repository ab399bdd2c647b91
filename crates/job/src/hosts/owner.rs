//! Who has which unit when workers are lost on the way: a function of the losses alone, so that nobody has to ask. Knows no
//! connection and no file.

use super::control_msg::{ALL, Loss};

/// Who is still there after the first so many losses, in their order.
pub(crate) fn living(workers: u32, losses: &[Loss]) -> Vec<u32> {
    (0..workers).filter(|&worker| losses.iter().all(|loss| loss.worker != worker)).collect()
}

/// Who has a unit of a turn: of those who were there when the turn began each has every so-many-th; what a worker that was lost
/// since then had left is shared out to those who were there then. `None`: a worker that is lost now has done it.
///
/// A unit that was taken over is done when the turn is: who takes it over from a worker that is lost in its turn does it again.
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
        // Whoever was not lost keeps what it had.
        let losses = [loss(1, 0, 30)];
        for unit in 0..100 {
            let (before, after) = (owner(3, &[], 0, unit), owner(3, &losses, 0, unit));
            assert!(before == Some(1) || before == after);
            assert_eq!(after.is_none(), before == Some(1) && unit < 30);
        }
    }
}
