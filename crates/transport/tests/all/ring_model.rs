//! Every interleaving of a writer and a reader of a ring, by loom: what is read was written, slots are given back
//! before they are written again, and no wake-up is lost. It compiles the protocol's own file with loom's atomics.
#![allow(unreachable_pub)] // the included file is a module of the crate, and here one of a program

mod atomics {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}
#[allow(dead_code)]
#[path = "../../src/shm/control.rs"] // with the atomics above in place of the standard ones
mod control;

use control::{Control, Sleep};
use loom::cell::UnsafeCell;
use loom::sync::{Arc, Condvar, Mutex};

/// Slots of the model's ring; its indexes count in the protocol's 64 bytes.
const SLOTS: u64 = 2;
const SLOT_BYTES: u64 = 64;

/// A ring and what stands for the two ways of being woken: the kernel's queues, which remember a wake-up that comes
/// between the last look and the sleep (a futex by comparing its word, a socket by its byte).
struct Ring {
    control: Control,
    slots: [UnsafeCell<u64>; SLOTS as usize],
    reader_bell: Bell,
    writer_bell: Bell,
}

/// Remembers being rung until somebody has waited for it.
#[derive(Default)]
struct Bell {
    rung: Mutex<bool>,
    change: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap() = true;
        self.change.notify_one();
    }

    fn wait(&self) {
        let mut rung = self.rung.lock().unwrap();
        while !*rung {
            rung = self.change.wait(rung).unwrap();
        }
        *rung = false;
    }
}

impl Ring {
    fn slot(&self, index: u64) -> &UnsafeCell<u64> {
        &self.slots[(index / SLOT_BYTES % SLOTS) as usize]
    }

    fn write(&self, how: Sleep, values: u64, batch: u64) {
        let (mut tail, mut head) = (0, 0);
        for value in 1..=values {
            while tail - head == SLOTS * SLOT_BYTES {
                // As `RingSender::frame`: what is committed is published before it waits.
                self.publish(tail, false);
                if self.control.writer_sleeps(how, head) {
                    self.writer_bell.wait();
                    self.control.writer_wakes();
                }
                head = self.control.head();
            }
            // loom reports a reader that is still in there.
            self.slot(tail).with_mut(|slot| set(slot, value));
            tail += SLOT_BYTES;
            if value % batch == 0 {
                self.publish(tail, false);
            }
        }
        self.publish(tail, true);
    }

    fn publish(&self, tail: u64, closed: bool) {
        if self.control.publish_tail(tail, closed).is_some() {
            self.reader_bell.ring();
        }
    }

    fn read(&self, how: Sleep) -> Vec<u64> {
        let (mut head, mut values) = (0, Vec::new());
        loop {
            let (tail, closed) = self.control.tail();
            if head == tail {
                if closed {
                    return values;
                }
                if self.control.reader_sleeps(how, tail) {
                    self.reader_bell.wait();
                    self.control.reader_wakes();
                }
                continue;
            }
            values.push(self.slot(head).with(get));
            head += SLOT_BYTES;
            if self.control.publish_head(head).is_some() {
                self.writer_bell.ring();
            }
        }
    }
}

#[allow(unsafe_code)] // loom's cells give pointers
fn set(slot: *mut u64, value: u64) {
    // SAFETY: loom calls this with exclusive access, or fails the test.
    unsafe { *slot = value }
}

#[allow(unsafe_code)] // as above
fn get(slot: *const u64) -> u64 {
    // SAFETY: loom calls this while nobody writes, or fails the test.
    unsafe { *slot }
}

/// Explores a stream of `values` that are published `batch` at a time.
fn check(values: u64, batch: u64, preemptions_max: Option<usize>) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = preemptions_max;
    model.check(move || {
        let ring = Arc::new(Ring {
            control: Control::default(),
            slots: [UnsafeCell::new(0), UnsafeCell::new(0)],
            reader_bell: Bell::default(),
            writer_bell: Bell::default(),
        });
        let writer = loom::thread::spawn({
            let ring = ring.clone();
            move || ring.write(Sleep::Futex, values, batch)
        });
        assert_eq!(ring.read(Sleep::Socket), (1..=values).collect::<Vec<_>>());
        writer.join().unwrap();
    });
}

#[test]
fn one_value_in_every_interleaving() {
    check(1, 1, None);
}

#[test]
fn a_full_ring_wakes_its_writer() {
    check(3, 1, Some(2));
}

#[test]
fn batches_are_published_once() {
    check(4, 2, Some(2));
}
