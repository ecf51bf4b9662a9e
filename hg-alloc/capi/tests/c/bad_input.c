/* Wrong arguments are answered by an error code that has a text, and harm nothing. */
#include "check.h"

static hg_options fresh(void) {
    hg_options options;
    CHECK(hg_options_init(&options, sizeof options) == HG_STATUS_OK);
    options.size = "8m:64m";
    return options;
}

static hg_status create(const hg_options *options) {
    hg_arena *arena = (hg_arena *)&arena;
    hg_status status = hg_arena_create(options, &arena);
    CHECK(status == HG_STATUS_OK || arena == NULL);
    return status;
}

static void options(void) {
    hg_options o = fresh();
    CHECK(hg_options_init(NULL, sizeof o) == HG_STATUS_ARGUMENT);
    CHECK(hg_options_init(&o, 8) == HG_STATUS_OPTIONS);
    hg_arena *arena;
    CHECK(hg_arena_create(NULL, &arena) == HG_STATUS_ARGUMENT);
    o = fresh();
    CHECK(hg_arena_create(&o, NULL) == HG_STATUS_ARGUMENT);

    o.struct_size = 0;
    CHECK(create(&o) == HG_STATUS_OPTIONS);
    o.struct_size = (size_t)-1;
    CHECK(create(&o) == HG_STATUS_OPTIONS);
    o = fresh(), o.kind = 99;
    CHECK(create(&o) == HG_STATUS_ARGUMENT);
    o = fresh(), o.tier = 99;
    CHECK(create(&o) == HG_STATUS_ARGUMENT);
    o = fresh(), o.flags = 1u << 31;
    CHECK(create(&o) == HG_STATUS_OPTIONS);
    o = fresh(), o.reserved = 1;
    CHECK(create(&o) == HG_STATUS_OPTIONS);
    o = fresh(), o.name = "a name that is longer than thirty-one bytes";
    CHECK(create(&o) == HG_STATUS_NAME);
    o = fresh(), o.name = "\xff\xfe";
    CHECK(create(&o) == HG_STATUS_NAME);

    /* A program of the future, whose options have more fields: they count only if they are set. */
    struct {
        hg_options known;
        uint64_t later[4];
    } future;
    CHECK(hg_options_init(&future.known, sizeof future) == HG_STATUS_OK);
    future.known.size = "8m:64m";
    future.later[3] = 1;
    CHECK(create(&future.known) == HG_STATUS_OPTIONS);
    future.later[3] = 0;
    CHECK(create(&future.known) == HG_STATUS_OK);
}

static void sizes(void) {
    const char *const bad[] = {"",   "x",      "64m:",  ":64m",  "64m:32m", "1m:2m",  "8m:33g",
                               "0m", "-1m:8m", "8m;9m", "8m:9q", "8m:8m:8m", "99999999999999999999m"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        hg_options o = fresh();
        o.size = bad[i];
        CHECK(create(&o) == HG_STATUS_SIZE);
    }
    hg_options o = fresh();
    o.size = NULL;
    CHECK(create(&o) == HG_STATUS_SIZE);
    o.init_bytes = 9 << 20, o.cap_bytes = 8 << 20;
    CHECK(create(&o) == HG_STATUS_SIZE);
    o.init_bytes = 0, o.cap_bytes = 33ull << 30;
    CHECK(create(&o) == HG_STATUS_SIZE);
}

static void profiles(void) {
    hg_options o = fresh();
    o.profile = "scale sideways";
    CHECK(create(&o) == HG_STATUS_PROFILE);
    o.profile = "scale up to 4m on 70% for 3 cycles";
    CHECK(create(&o) == HG_STATUS_PROFILE);
    o.profile = "scale up to 64m on 70% for 3 cycles / scale down to 8m on 30% for 20 cycles";
    CHECK(create(&o) == HG_STATUS_OK);

    char message[64];
    memset(message, 'x', sizeof message);
    CHECK(hg_profile_check("scale up to 64m on 70% for 3 cycles", message, sizeof message) == HG_STATUS_OK);
    CHECK(message[0] == 'x');
    CHECK(hg_profile_check("scale up to 64m on 170% for 3 cycles", message, sizeof message) == HG_STATUS_PROFILE);
    CHECK(strcmp(message, "line 1 column 20: want a percentage from 1 to 100") == 0);
    char tiny[5];
    CHECK(hg_profile_check("", tiny, sizeof tiny) == HG_STATUS_PROFILE && strcmp(tiny, "line") == 0);
    CHECK(hg_profile_check("", NULL, 0) == HG_STATUS_PROFILE);
    CHECK(hg_profile_check(NULL, message, sizeof message) == HG_STATUS_ARGUMENT);
}

static void no_arena(void) {
    void *block;
    errno = 0;
    CHECK(hg_malloc(NULL, 1) == NULL && errno == EINVAL);
    CHECK(hg_calloc(NULL, 1, 1) == NULL && hg_realloc(NULL, NULL, 1) == NULL);
    CHECK(hg_aligned_alloc(NULL, 16, 1) == NULL && hg_usable_size(NULL, &block) == 0);
    CHECK(HG_MALLOC(NULL, 1) == NULL && HG_CALLOC(NULL, 1, 1) == NULL && HG_REALLOC(NULL, NULL, 1) == NULL);
    CHECK(HG_ALIGNED_ALLOC(NULL, 16, 1) == NULL);
    hg_free(NULL, &block);
    HG_FREE(NULL, &block);
    CHECK(hg_malloc_many(NULL, 1, &block, 1) == 0);
    hg_free_many(NULL, &block, 1);
    CHECK(hg_live_bytes(NULL) == 0 && hg_used_bytes(NULL) == 0);
    CHECK(hg_committed_bytes(NULL) == 0 && hg_peak_bytes(NULL) == 0);
    CHECK(hg_cap_bytes(NULL) == 0 && hg_trim(NULL) == 0 && !hg_owns(NULL, &block));
    hg_tick(NULL);
    hg_stats stats;
    CHECK(hg_stats_read(NULL, &stats, sizeof stats) == HG_STATUS_ARGUMENT);
    CHECK(hg_extent(NULL, NULL, NULL) == HG_STATUS_ARGUMENT && hg_recover(NULL, NULL) == HG_STATUS_ARGUMENT);
    CHECK(hg_set_role(NULL, "role") == HG_STATUS_ARGUMENT);
    int fd;
    CHECK(hg_arena_fd(NULL, &fd) == HG_STATUS_ARGUMENT);
    hg_arena *arena;
    CHECK(hg_arena_open(NULL, &arena) == HG_STATUS_ARGUMENT && hg_arena_open("x", NULL) == HG_STATUS_ARGUMENT);
    CHECK(hg_arena_open_fd(-1, &arena) == HG_STATUS_SYSTEM && errno == EBADF);
    CHECK(hg_arena_open_fd(0, &arena) == HG_STATUS_NOT_AN_ARENA);
    CHECK(hg_arena_unlink(NULL) == HG_STATUS_ARGUMENT);
}

static void texts(void) {
    for (int status = 0; status <= HG_STATUS_SYSTEM; status++) {
        CHECK(strlen(hg_status_text(status)) > 3 && strcmp(hg_status_text(status), "unknown error") != 0);
        for (int other = 0; other < status; other++) CHECK(strcmp(hg_status_text(status), hg_status_text(other)) != 0);
    }
    CHECK(strcmp(hg_status_text(-1), "unknown error") == 0);
    CHECK(strcmp(hg_status_text(HG_STATUS_SYSTEM + 1), "unknown error") == 0);
    CHECK(strcmp(hg_version(), HG_VERSION) == 0);
    CHECK(strcmp(hg_corruption_label(0), "double free") == 0 && strcmp(hg_corruption_label(999), "unknown") == 0);
    CHECK(strcmp(hg_cause_label(15), "cgroup limit") == 0 && strcmp(hg_reason_label(0), "refill") == 0);
    CHECK(strcmp(hg_tier_label(1), "4K") == 0 && strcmp(hg_tier_label((uint32_t)-1), "unknown") == 0);
}

static void callbacks(void) {
    hg_callbacks none;
    memset(&none, 0, sizeof none);
    CHECK(hg_set_callbacks(&none) == HG_STATUS_OPTIONS);
    CHECK(hg_set_callbacks(NULL) == HG_STATUS_OK);
}

/* At the end: a process has at most sixteen arenas. */
static void too_many(void) {
    hg_options o = fresh();
    hg_status status = HG_STATUS_OK;
    int made = 0;
    while (made < 100 && (status = create(&o)) == HG_STATUS_OK) made++;
    CHECK(status == HG_STATUS_TOO_MANY && made >= 8);
}

int main(void) {
    options();
    sizes();
    profiles();
    no_arena();
    texts();
    callbacks();
    too_many();
    kept();
    return 0;
}
