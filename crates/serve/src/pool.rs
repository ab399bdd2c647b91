//! Scratch that is expensive to make: a thread takes one and puts it back.

use std::sync::{Mutex, PoisonError};

/// Values that are not in use. It holds at most as many as there were threads at once.
#[derive(Debug)]
pub(crate) struct Pool<T>(Mutex<Vec<T>>);

impl<T> Default for Pool<T> {
    fn default() -> Pool<T> {
        Pool(Mutex::default())
    }
}

impl<T> Pool<T> {
    /// Makes values until so many are free.
    pub(crate) fn fill<E>(&self, count: usize, mut make: impl FnMut() -> Result<T, E>) -> Result<(), E> {
        let mut free = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while free.len() < count {
            free.push(make()?);
        }
        Ok(())
    }

    /// Lends a value to `work`, a new one if none is free.
    pub(crate) fn lend<R, E>(
        &self,
        make: impl FnOnce() -> Result<T, E>,
        work: impl FnOnce(&mut T) -> Result<R, E>,
    ) -> Result<R, E> {
        let lock = || self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let free = lock().pop();
        let mut value = match free {
            Some(value) => value,
            None => make()?,
        };
        let done = work(&mut value);
        lock().push(value);
        done
    }
}
