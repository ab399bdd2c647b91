//! A pool of threads for blocking work. All threads start first, so that a later lack of threads stops no work.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

type Task = Box<dyn FnOnce() + Send>;

/// A thread pool. Copies share it. Its threads end after the last copy is gone and the begun tasks are done.
#[derive(Debug, Clone)]
pub(crate) struct ThreadPool(Sender<Task>);

impl ThreadPool {
    /// Starts the threads.
    ///
    /// # Errors
    /// The system has no threads left.
    pub(crate) fn start(name: &str, threads: usize) -> std::io::Result<ThreadPool> {
        let (tasks, taken) = channel::<Task>();
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..threads {
            let taken = Arc::clone(&taken);
            std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&taken))?;
        }
        Ok(ThreadPool(tasks))
    }

    /// Runs a task on the pool and waits for its result. `None`: the task panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (told, outcome) = oneshot::channel();
        // The caller may be gone.
        let task = Box::new(move || drop(told.send(task())));
        self.0.send(task).ok()?;
        outcome.await.ok()
    }
}

fn run(tasks: &Mutex<Receiver<Task>>) {
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        // The panic has been reported, and the caller gets `None`.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_on_after_a_panic_and_without_who_asked() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let work = ThreadPool::start("test", 1).expect("threads");
        runtime.block_on(async {
            assert_eq!(work.run(|| 2 + 2).await, Some(4));
            assert_eq!(work.run(|| panic!("as a test")).await, None::<u32>);
            let (done, finished) = std::sync::mpsc::channel();
            drop(work.run(move || done.send(1)));
            let mut begun = Box::pin(work.run(|| 5));
            assert_eq!(begun.as_mut().await, Some(5));
            assert!(finished.try_recv().is_err(), "what was never polled was never begun");
        });
    }
}
