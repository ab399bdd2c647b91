//! Reuses memory: dropped values go back to a pool, so that a steady stream of minibatches allocates nothing. Does
//! not know what it keeps.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

/// Things that are free to be used again.
#[derive(Debug)]
pub struct Recycler<T> {
    free: Mutex<Vec<T>>,
    most: usize,
}

/// A thing that goes back when it is dropped.
#[derive(Debug)]
pub struct Recycled<T> {
    /// Always there, but for the moment of its drop.
    value: Option<T>,
    home: Arc<Recycler<T>>,
}

impl<T> Recycler<T> {
    /// Keeps at most so many; what comes back beyond that is freed.
    #[must_use]
    pub fn new(most: usize) -> Arc<Recycler<T>> {
        Arc::new(Recycler { free: Mutex::new(Vec::new()), most })
    }

    /// One that was used before, or a new one.
    pub fn take(self: &Arc<Self>, new: impl FnOnce() -> T) -> Recycled<T> {
        let used = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Recycled { value: Some(used.unwrap_or_else(new)), home: Arc::clone(self) }
    }
}

impl<T> Deref for Recycled<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is there until its drop")
    }
}

impl<T> DerefMut for Recycled<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("it is there until its drop")
    }
}

impl<T> Drop for Recycled<T> {
    fn drop(&mut self) {
        let mut free = self.home.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.len() < self.home.most {
            free.extend(self.value.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_dropped_is_used_again_up_to_the_bound() {
        let home = Recycler::new(1);
        let mut made = 0;
        let mut take = || {
            home.take(|| {
                made += 1;
                vec![made]
            })
        };
        let (first, second) = (take(), take());
        drop(first);
        drop(second);
        let (first, third) = (take(), take());
        assert_eq!((first[0], third[0]), (1, 3), "the second one was freed");
    }
}
