/* A handler that interrupts malloc and free a thousand times a second, and itself allocates and frees, neither deadlocks
 * nor damages anything. (In the handler malloc may refuse with NULL; the interrupted code may not notice.) */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

static volatile sig_atomic_t handled, served;

static void handler(int signal) {
    (void)signal;
    int saved = errno;
    handled++;
    for (size_t n = 24; n < 20000; n *= 3) {
        unsigned char *p = malloc(n);
        if (!p) continue;
        memset(p, 0x77, n);
        CHECK(p[0] == 0x77 && p[n - 1] == 0x77);
        free(p);
        served++;
    }
    errno = saved;
}

static void *load(void *arg) {
    time_t end = time(NULL) + 4;
    for (uint64_t round = (uintptr_t)arg; time(NULL) < end; round++) exercise(round, 2000);
    return NULL;
}

static void promise(void) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGALRM, &action, NULL) == 0);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, load, (void *)1000000) == 0);
    CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
    load(NULL);
    struct itimerval never = {{0, 0}, {0, 0}};
    setitimer(ITIMER_REAL, &never, NULL);
    pthread_join(thread, NULL);
    CHECK(handled > 100 && served > 100);
}
