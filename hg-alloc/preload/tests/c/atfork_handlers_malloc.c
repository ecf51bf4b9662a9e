/* Handlers of pthread_atfork, registered before and after the first thread, allocate and free on all three occasions. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

static volatile int stop;
static void *held;
static int prepared, in_parent, in_child;

static void prepare(void) { prepared++, exercise(1, 300), held = malloc(100); }
static void parent(void) { in_parent++, free(held), exercise(2, 300); }
static void child(void) { in_child++, free(held), exercise(3, 300); }

static void *load(void *arg) {
    for (uint64_t round = 0; !stop; round++) exercise((uintptr_t)arg + round, 500);
    return NULL;
}

static void promise(void) {
    CHECK(pthread_atfork(prepare, parent, child) == 0);
    pthread_t threads[2];
    for (uintptr_t i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, load, (void *)i) == 0);
    for (int i = 0; i < 100; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(20);
            CHECK(in_child == 1);
            exercise(i, 300);
            _exit(0);
        }
        int status;
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    CHECK(prepared == 100 && in_parent == 100 && in_child == 0);
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
}
