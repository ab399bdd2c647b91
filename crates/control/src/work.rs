//! Threads for work that blocks, all started before there is any: a system that has none left later stops nobody's work. Knows
//! nothing of what is done.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

type Task = Box<dyn FnOnce() + Send>;

/// A few threads; copies are of the same ones. They end when the last copy is gone and what was begun is done.
#[derive(Debug, Clone)]
pub(crate) struct Work(Sender<Task>);

impl Work {
    /// Starts so many.
    ///
    /// # Errors
    /// The system has no threads left.
    pub(crate) fn start(name: &str, threads: usize) -> std::io::Result<Work> {
        let (tasks, taken) = channel::<Task>();
        let taken = Arc::new(Mutex::new(taken));
        for _ in 0..threads {
            let taken = Arc::clone(&taken);
            std::thread::Builder::new().name(name.to_owned()).spawn(move || run(&taken))?;
        }
        Ok(Work(tasks))
    }

    /// Has one of them do something, and waits for what comes of it. `None`: it has panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        task: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let (told, outcome) = oneshot::channel();
        // Who asked may be gone.
        let task = Box::new(move || drop(told.send(task())));
        self.0.send(task).ok()?;
        outcome.await.ok()
    }
}

fn run(tasks: &Mutex<Receiver<Task>>) {
    loop {
        let task = tasks.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(task) = task else { return };
        // It has said so itself, and whoever waits is told.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(task));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_goes_on_after_a_panic_and_without_who_asked() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let work = Work::start("test", 1).expect("threads");
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
