/* exit(), quick_exit() and a return of main while threads allocate end the process, with the right status. */
#include "check.h"
#include <pthread.h>
#include <sys/wait.h>

static void *load(void *arg) {
    for (uint64_t round = 0;; round++) exercise((uintptr_t)arg + round, 500);
    return NULL;
}

static void promise(void) {
    for (int i = 0; i < 60; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            alarm(20);
            pthread_t threads[3];
            for (uintptr_t t = 0; t < 3; t++) CHECK(pthread_create(&threads[t], NULL, load, (void *)t) == 0);
            exercise(i, 500);
            if (i % 2) exit(5);
            quick_exit(5);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 5);
    }
}
