// How std orders what threads do, for a thread sanitizer that sees only what is inlined of it: where std itself is not built with
// the sanitizer, what a lock does when it has to wait is not seen, and races would be reported that are none. Each function here
// is linked in place of std's (`ld --wrap`), calls it, and says the rest; tests/proof.sh knows the names. Linked into the
// sanitizer's builds only.
#include <stdbool.h>

void __tsan_acquire(void *);
void __tsan_release(void *);

#define STD(returns, name, symbol, ...)                             \
    returns real_##name(__VA_ARGS__) __asm__("__real_" symbol);     \
    returns wrap_##name(__VA_ARGS__) __asm__("__wrap_" symbol);     \
    returns wrap_##name(__VA_ARGS__)

STD(void, lock, LOCK, void *mutex) {
    real_lock(mutex);
    __tsan_acquire(mutex);
}

STD(void, read, READ, void *rwlock) {
    real_read(rwlock);
    __tsan_acquire(rwlock);
}

STD(void, write, WRITE, void *rwlock) {
    real_write(rwlock);
    __tsan_acquire(rwlock);
}

STD(void, wait, WAIT, void *condvar, void *mutex) {
    __tsan_release(mutex);
    real_wait(condvar, mutex);
    __tsan_acquire(mutex);
}

STD(bool, wait_timeout, WAIT_TIMEOUT, void *condvar, void *mutex, unsigned long seconds, unsigned nanoseconds) {
    __tsan_release(mutex);
    bool in_time = real_wait_timeout(condvar, mutex, seconds, nanoseconds);
    __tsan_acquire(mutex);
    return in_time;
}

// What runs once is done before others see that it is: said between the two, in a closure around the closure, which is a pointer
// and a table of what it can do, the last of which is to be called.
struct once_closure {
    void *once, *closure, **table;
};
enum { TABLE_CALL = 4 };

static void call_and_say(struct once_closure *self, void *state) {
    ((void (*)(void *, void *))self->table[TABLE_CALL])(self->closure, state);
    __tsan_release(self->once);
}

static void *once_table[] = {0, (void *)sizeof(struct once_closure), (void *)_Alignof(struct once_closure), call_and_say, call_and_say};

STD(void, once, ONCE, void *once, bool ignores_poisoning, void *closure, void **table, void *place) {
    struct once_closure around = {once, closure, table};
    real_once(once, ignores_poisoning, &around, once_table, place);
    __tsan_acquire(once);
}

// The last thing that a thread of a scope does. Who opened the scope waits for one of its words.
STD(void, leave, LEAVE, unsigned long *scope, bool panicked) {
    for (int word = 0; word < 3; word++) {
        __tsan_release(&scope[word]);
    }
    real_leave(scope, panicked);
}

// The last reference of an Arc goes with a release and then a fence, which the sanitizer does not know. Where std is built with
// it, Arc has a load instead.
enum { ACQUIRE_AND_RELEASE = 4 };
STD(unsigned long, sub, "__tsan_atomic64_fetch_sub", volatile unsigned long *at, unsigned long by, int order) {
    (void)order;
    return real_sub(at, by, ACQUIRE_AND_RELEASE);
}
