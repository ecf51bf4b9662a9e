/* Processes share an arena: each frees what others allocated, and each continues on it with nothing to do after the fork. */
#include "check.h"

enum { WORKERS = 4, MAILBOXES = 256 };

static hg_arena *arena;
static uintptr_t *mailboxes;

static void work(int me) {
    char role[32];
    snprintf(role, sizeof role, "worker %d", me);
    CHECK(hg_set_role(arena, role) == HG_STATUS_OK);
    uint64_t state = seed((uint64_t)me + 1);
    for (int i = 0; i < rounds(100000); i++) {
        /* The first word of a block is its size. */
        size_t size = sizeof(size_t) + draw(&state) % (draw(&state) % 64 ? 500 : 70000);
        size_t *block = (size_t *)hg_malloc(arena, size);
        CHECK(block);
        stamp(block + 1, size - sizeof(size_t), size);
        *block = size;
        size_t *other = (size_t *)__atomic_exchange_n(&mailboxes[draw(&state) % MAILBOXES], (uintptr_t)block, __ATOMIC_ACQ_REL);
        if (!other) continue;
        check_stamp(other + 1, *other - sizeof(size_t), *other);
        hg_free(arena, other);
    }
}

int main(void) {
    arena = make(HG_KIND_SHARED, "fork");
    mailboxes = (uintptr_t *)hg_calloc(arena, MAILBOXES, sizeof *mailboxes);
    char *before = (char *)hg_malloc(arena, 100);
    CHECK(mailboxes && before);
    strcpy(before, "from the parent");
    void *first;
    size_t bytes;
    CHECK(hg_extent(arena, &first, &bytes) == HG_STATUS_OK && bytes == 256 << 20);

    pid_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = fork();
        CHECK(workers[i] >= 0);
        if (workers[i] == 0) {
            void *same;
            CHECK(hg_extent(arena, &same, NULL) == HG_STATUS_OK && same == first);
            CHECK(strcmp(before, "from the parent") == 0);
            work(i);
            /* Without a word to the library: there is nothing to hand back. */
            _exit(0);
        }
    }
    for (int i = 0; i < WORKERS; i++) ended_well(workers[i]);

    for (int i = 0; i < MAILBOXES; i++) hg_free(arena, (void *)mailboxes[i]);
    hg_free(arena, before);
    hg_free(arena, mailboxes);
    hg_recovered recovered;
    CHECK(hg_recover(arena, &recovered) == HG_STATUS_OK && recovered.blocks == 0);
    hg_trim(arena);
    hg_stats stats = stats_of(arena);
    CHECK(stats.live_bytes == 0 && stats.corruptions == 0 && stats.owner_deaths == 0);
    CHECK(stats.committed_bytes == stats.floor_bytes && stats.floor_bytes == 8 << 20);
    kept();
    return 0;
}
