/* Workers are killed at any moment, with blocks in their hands; the others go on, and nothing is lost or doubled. */
#include "check.h"

enum { WORKERS = 4, SLOTS = 512 };

/* What each worker has, where its parent finds it: a block is written here before it is anybody's, and taken out before it
 * is freed, so that after a death at most one block of the worker is in doubt. */
struct desk {
    uintptr_t blocks[SLOTS];
    uintptr_t freeing;
    uint64_t calls;
};

static hg_arena *arena;
static struct desk *desks;

static int doubts;

/* A worker died in the middle of a free, which happened or did not: its parent cannot know, so the block is left alone. */
static void in_doubt(struct desk *desk) {
    if (desk->freeing) doubts++;
    desk->freeing = 0;
}

static size_t size_of_block(uint64_t *state) {
    return 16 + draw(state) % (draw(state) % 50 ? 1000 : 100000);
}

static void work(struct desk *desk, uint64_t who) {
    uint64_t state = seed(who);
    for (;;) {
        volatile uintptr_t *slot = &desk->blocks[draw(&state) % SLOTS];
        if (*slot) {
            size_t *block = (size_t *)*slot;
            check_stamp(block + 2, block[0], block[1]);
            desk->freeing = *slot;
            *slot = 0;
            hg_free(arena, block);
            desk->freeing = 0;
        } else {
            size_t size = size_of_block(&state);
            size_t *block = (size_t *)hg_malloc(arena, size);
            CHECK(block);
            block[0] = size - 2 * sizeof(size_t), block[1] = who;
            stamp(block + 2, block[0], who);
            *slot = (uintptr_t)block;
        }
        desk->calls++;
    }
}

static pid_t start(struct desk *desk, uint64_t who) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        work(desk, who);
        _exit(0);
    }
    return child;
}

int main(void) {
    arena = make(HG_KIND_SHARED, "killed");
    void *memory = mmap(NULL, WORKERS * sizeof(struct desk), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    desks = (struct desk *)memory;
    pid_t workers[WORKERS];
    for (int i = 0; i < WORKERS; i++) workers[i] = start(&desks[i], (uint64_t)i + 1);
    uint64_t state = seed(99);
    int kills = rounds(200);
    for (int i = 0; i < kills; i++) {
        usleep((useconds_t)(draw(&state) % 3000 + (is_emulated() ? 100000 : 100)));
        int victim = (int)(draw(&state) % WORKERS);
        CHECK(kill(workers[victim], SIGKILL) == 0);
        int status;
        CHECK(waitpid(workers[victim], &status, 0) == workers[victim] && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
        CHECK(hg_recover(arena, NULL) == HG_STATUS_OK);
        struct desk *desk = &desks[victim];
        in_doubt(desk);
        workers[victim] = start(desk, (uint64_t)i + 100);
    }
    uint64_t calls = 0;
    for (int i = 0; i < WORKERS; i++) {
        CHECK(kill(workers[i], SIGKILL) == 0 && waitpid(workers[i], NULL, 0) == workers[i]);
        calls += desks[i].calls;
    }
    CHECK(hg_recover(arena, NULL) == HG_STATUS_OK);
    for (int i = 0; i < WORKERS; i++) {
        in_doubt(&desks[i]);
        for (int s = 0; s < SLOTS; s++) {
            size_t *block = (size_t *)desks[i].blocks[s];
            if (!block) continue;
            check_stamp(block + 2, block[0], block[1]);
            hg_free(arena, block);
        }
    }
    hg_trim(arena);
    hg_stats stats = stats_of(arena);
    printf("%llu calls, %llu repairs, %llu recovered, %d blocks in doubt, %llu bytes with the dead\n",
           (unsigned long long)calls, (unsigned long long)stats.owner_deaths, (unsigned long long)stats.recovered, doubts,
           (unsigned long long)stats.live_bytes);
    CHECK(calls > 1000 && stats.corruptions == 0);
    /* What is still live are blocks that a worker had got and not noted, or noted as going and not freed: one at most for
     * each death. */
    CHECK(stats.live_bytes <= (uint64_t)(kills + WORKERS) * (128 << 10));
    void *block = hg_malloc(arena, 32 << 20);
    CHECK(block);
    hg_free(arena, block);
    kept();
    return 0;
}
