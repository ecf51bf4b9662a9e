/* Each setting of an arena does what it says, and hg_tick and hg_trim keep to them. */
#include "check.h"

#include <sys/resource.h>

static hg_options fresh(void) {
    hg_options options;
    CHECK(hg_options_init(&options, sizeof options) == HG_STATUS_OK);
    options.kind = HG_KIND_SHARED;
    options.size = "8m:128m";
    return options;
}

static hg_arena *made(const hg_options *options) {
    hg_arena *arena = NULL;
    hg_status status = hg_arena_create(options, &arena);
    if (status != HG_STATUS_OK) fprintf(stderr, "%s (errno %d)\n", hg_status_text(status), errno);
    CHECK(status == HG_STATUS_OK && arena);
    return arena;
}

static void use(hg_arena *arena) {
    static void *blocks[40000];
    CHECK(hg_malloc_many(arena, 1000, blocks, 40000) == 40000);
    for (int i = 0; i < 40000; i++) memset(blocks[i], i, 1000);
    CHECK(hg_live_bytes(arena) >= 40000000 && hg_used_bytes(arena) >= 40000000 && hg_committed_bytes(arena) >= 40000000);
    hg_free_many(arena, blocks, 40000);
}

static void size(void) {
    hg_options options = fresh();
    hg_arena *arena = made(&options);
    CHECK(hg_committed_bytes(arena) == 8 << 20 && hg_cap_bytes(arena) == 128 << 20);
    use(arena);
    hg_trim(arena);
    CHECK(hg_committed_bytes(arena) == 8 << 20 && hg_live_bytes(arena) == 0);

    options.size = "32";
    arena = made(&options);
    CHECK(hg_committed_bytes(arena) == 32 << 20 && hg_cap_bytes(arena) == 32 << 20);
    CHECK(hg_malloc(arena, 33 << 20) == NULL);
}

static void profile(void) {
    hg_options options = fresh();
    options.profile = "scale up to 96m on 70% for 3 cycles / scale down to 16m on 30% for 20 cycles";
    hg_arena *arena = made(&options);
    hg_stats stats = stats_of(arena);
    CHECK(stats.ceiling_bytes == 96 << 20 && stats.cap_bytes == 128 << 20);
    use(arena);
    for (int i = 0; i < 5; i++) hg_tick(arena);
    CHECK(hg_malloc(arena, 97 << 20) == NULL && hg_malloc(arena, 64 << 20));
    CHECK(stats_of(arena).committed_bytes <= 96 << 20);
}

static void pin(void) {
    hg_options options = fresh();
    options.flags = HG_FLAG_PIN;
    options.size = "4m:64m";
    hg_arena *arena = made(&options);
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_MEMLOCK, &limit) == 0);
    /* What is not allowed is not done, and the arena works on. */
    if (limit.rlim_cur >= 64 << 20) CHECK(stats_of(arena).pinned_bytes == 4 << 20);
    use(arena);
    hg_trim(arena);
    CHECK(stats_of(arena).pinned_bytes <= hg_committed_bytes(arena));
}

static void tiers(void) {
    const uint32_t tiers[] = {0, HG_TIER_BASE, HG_TIER_THP, HG_TIER_HUGETLB};
    for (int i = 0; i < 4; i++) {
        hg_options options = fresh();
        options.tier = tiers[i];
        hg_arena *arena = made(&options);
        use(arena);
        hg_trim(arena);
        use(arena);
        CHECK(strcmp(hg_tier_label(stats_of(arena).tier), "unknown") != 0);
        if (tiers[i] <= HG_TIER_BASE) CHECK(stats_of(arena).tier == HG_TIER_BASE);
    }
}

static void structures(void) {
    hg_options options = fresh();
    hg_arena *arena = made(&options);
    CHECK(hg_malloc(arena, 100));
    /* A program that knows fewer fields gets these and no more. */
    hg_stats stats;
    memset(&stats, 0xff, sizeof stats);
    CHECK(hg_stats_read(arena, &stats, 3 * sizeof(uint64_t)) == HG_STATUS_OK && stats.struct_size == 3 * sizeof(uint64_t));
    CHECK(stats.live_bytes > 0 && stats.live_bytes < 1 << 20 && stats.used_peak_bytes == UINT64_MAX);
    CHECK(hg_stats_read(arena, &stats, 0) == HG_STATUS_ARGUMENT && hg_stats_read(arena, NULL, 100) == HG_STATUS_ARGUMENT);
    /* One that knows more is told how many there are. */
    struct {
        hg_stats known;
        uint64_t more;
    } later;
    later.more = 7;
    CHECK(hg_stats_read(arena, &later.known, sizeof later) == HG_STATUS_OK);
    CHECK(later.known.struct_size == sizeof(hg_stats) && later.more == 7);
}

int main(void) {
    size();
    profile();
    pin();
    tiers();
    structures();
    kept();
    return 0;
}
