/* One fuzzing input is a list of operations on a device that runs one generated program: frames, table writes, groups,
 * members and choices of action profiles, value sets, meters, idle timeouts, digests, frames with a sender's offload
 * request. Built by tests/fuzz/build.py with the runtime and the program;
 * fuzz_tables.h (written there too) says which actions and parameters the control plane could have chosen.
 *
 * With FUZZ_STANDALONE it has a main that runs the inputs given as files, for compilers without libFuzzer. */
#include <stdio.h>
#include <stdlib.h>

#include "fuzz_tables.h"
#include "runtime.h"

extern const struct ss_program ss_program;
struct ss_fabric *ss_fabric_new(uint32_t threads, uint64_t seed);
struct ss_device *ss_device_new(struct ss_fabric *fabric, uint64_t id, int32_t cpu_port);
int ss_device_load(struct ss_device *device, const struct ss_program *program);
void ss_device_activate(struct ss_device *device);
int64_t ss_process(struct ss_device *device, uint32_t port, const uint8_t *data, uint32_t len, uint8_t **out);
int ss_table_insert(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                    const uint8_t *ranges, int32_t priority, uint32_t action, const uint8_t *params,
                    uint32_t params_len, uint32_t is_const, uint64_t *handle);
int ss_table_modify(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                    const uint8_t *ranges, int32_t priority, uint32_t action, const uint8_t *params,
                    uint32_t params_len);
int ss_table_delete(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                    const uint8_t *ranges, int32_t priority);
int ss_table_set_default(struct ss_device *device, uint32_t table, uint32_t action, const uint8_t *params,
                         uint32_t params_len);
int ss_table_idle(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                  const uint8_t *ranges, int32_t priority, uint64_t ttl_ns);
int ss_table_meter(struct ss_device *device, uint32_t table, const uint64_t *key, const uint64_t *mask,
                   const uint8_t *ranges, int32_t priority, const struct ss_meter *old,
                   const struct ss_meter_config *config, uint32_t clear, struct ss_meter *out);
int ss_meter_access(struct ss_device *device, uint32_t array, uint64_t first, uint64_t n, const struct ss_meter *old,
                    const struct ss_meter_config *config, uint32_t clear, struct ss_meter *out);
int ss_member_set(struct ss_device *device, uint32_t profile, uint32_t number, uint32_t action, const uint8_t *params,
                  uint32_t params_len);
int ss_choice_set(struct ss_device *device, uint32_t profile, uint32_t number, const uint32_t *members, uint32_t n);
int ss_value_set_write(struct ss_device *device, uint32_t set, const uint64_t *values, uint32_t n);
int ss_digest_enable(struct ss_device *device, uint32_t number, uint32_t enabled, uint32_t filter);
int ss_digest_forget(struct ss_device *device, uint32_t number, const uint8_t *data, uint32_t len, uint32_t n);
int64_t ss_table_dump(struct ss_device *device, uint32_t table, uint8_t **out);
int ss_group_write(struct ss_device *device, uint32_t sessions, uint32_t id, const struct ss_replica *replicas,
                   int32_t n, uint32_t truncate);

struct input {
    const uint8_t *data;
    size_t len;
};

static uint8_t byte(struct input *in) {
    if (!in->len) return 0;
    in->len--;
    return *in->data++;
}

static void bytes(struct input *in, void *out, size_t n) {
    size_t have = n < in->len ? n : in->len;
    memset(out, 0, n);
    if (have) memcpy(out, in->data, have);
    in->data += have;
    in->len -= have;
}

/* The frame that the input gives, in memory of exactly its length. */
static uint8_t *frame_of(struct input *in, uint32_t *len) {
    size_t n = byte(in);
    n |= (size_t)byte(in) << 8;
    if (n > in->len) n = in->len;
    uint8_t *frame = malloc(n ? n : 1);
    if (!frame) abort();
    bytes(in, frame, n);
    *len = (uint32_t)n;
    return frame;
}

static void run_frame(struct ss_device *device, struct input *in) {
    uint32_t port = byte(in), len;
    uint8_t *frame = frame_of(in, &len), *out = NULL;
    /* The switch keeps frames in bigger buffers, where one byte too many goes unnoticed: parse it here first. */
    struct ss_packet *p = aligned_alloc(64, (ss_program.packet_bytes + 63) & ~63u);
    if (!p) abort();
    memset(p, 0, ss_program.packet_bytes);
    p->target.length = p->target.ingress_length = len;
    uint32_t parsed = ss_program.parse(&device->state, p, frame, len);
    if (parsed > len) abort();
    uint32_t headers = ss_program.headers_bytes(p);
    uint8_t *emitted = malloc(headers + 1);
    if (!emitted) abort();
    ss_program.checksums(&device->state, p, frame + parsed, len - parsed);
    ss_program.emit(p, emitted);
    free(emitted);
    free(p);
    ss_process(device, port, frame, len, &out);
    free(out);
    free(frame);
}

static struct ss_meter_config meter_config(struct input *in) {
    uint8_t mode = byte(in), rate = byte(in), burst = byte(in);
    return (struct ss_meter_config){mode % 4, rate, (uint64_t)rate << (mode >> 4), burst, 2u * burst};
}

enum { INSERT, MODIFY, DELETE, IDLE, METER };

static void write_table(struct ss_device *device, struct input *in, int kind) {
    if (!ss_program.n_tables) return;
    uint32_t table = byte(in) % ss_program.n_tables;
    const struct ss_table_info *info = &ss_program.tables[table];
    uint32_t action = byte(in) % fuzz_tables[table].n_actions;
    int32_t priority = byte(in);
    uint8_t how = byte(in);
    uint64_t key[FUZZ_KEY_WORDS], mask[FUZZ_KEY_WORDS], handle;
    uint8_t ranges[FUZZ_RANGE_BYTES], params[FUZZ_PARAM_BYTES];
    size_t range_bytes = 0;
    for (uint32_t i = 0; i < info->n_ranges; i++) range_bytes += 2u * info->ranges[i].bytes;
    bytes(in, key, info->key_words * sizeof *key);
    if (how % 3 == 0)
        memset(mask, 0xff, sizeof mask);
    else if (how % 3 == 1)
        memset(mask, 0, sizeof mask);
    else
        bytes(in, mask, info->key_words * sizeof *mask);
    for (uint32_t i = 0; i < info->key_words; i++) {
        mask[i] &= fuzz_tables[table].key[i];
        key[i] &= mask[i];
    }
    bytes(in, ranges, range_bytes);
    bytes(in, params, info->params_bytes);
    const uint8_t *allowed = fuzz_tables[table].actions[action];
    for (uint32_t i = 0; i < info->params_bytes; i++) params[i] &= allowed[i];
    uint8_t *out = NULL;
    if (kind == INSERT) {
        ss_table_insert(device, table, key, mask, ranges, priority, action, params, info->params_bytes, 0, &handle);
    } else if (kind == MODIFY) {
        if (how & 64 && fuzz_tables[table].actions != fuzz_choices)
            ss_table_set_default(device, table, action, params, info->params_bytes);
        else
            ss_table_modify(device, table, key, mask, ranges, priority, action, params, info->params_bytes);
    } else if (kind == IDLE) {
        ss_table_idle(device, table, key, mask, ranges, priority, (uint64_t)how << (how & 31));
    } else if (kind == METER) {
        struct ss_meter_config config = meter_config(in);
        struct ss_meter meter;
        ss_table_meter(device, table, key, mask, ranges, priority, NULL, how & 64 ? &config : NULL, how & 128, &meter);
    } else {
        ss_table_delete(device, table, key, mask, ranges, priority);
        if (how & 64 && ss_table_dump(device, table, &out) >= 0) free(out);
    }
}

static void set_member(struct ss_device *device, struct input *in, uint32_t profile, uint32_t number) {
    uint8_t params[FUZZ_PARAM_BYTES];
    const struct fuzz_table *actions = &fuzz_profiles[profile];
    uint32_t action = byte(in) % actions->n_actions;
    bytes(in, params, actions->params_bytes);
    for (uint32_t i = 0; i < actions->params_bytes; i++) params[i] &= actions->actions[action][i];
    if (ss_member_set(device, profile, number, action, params, actions->params_bytes)) abort();
}

static void set_choice(struct ss_device *device, struct input *in, uint32_t profile, uint32_t number) {
    uint32_t members[7], n = byte(in) % 8;
    for (uint32_t i = 0; i < n; i++) members[i] = byte(in) % FUZZ_CHOICES;
    if (ss_choice_set(device, profile, number, members, n)) abort();
}

/* What entries may point to is there from the beginning. */
static void make_profiles(struct ss_device *device) {
    struct input none = {(const uint8_t *)"", 0};
    for (uint32_t i = 0; i < ss_program.n_profiles; i++) {
        for (uint32_t k = 0; k < FUZZ_CHOICES; k++) set_member(device, &none, i, k);
        for (uint32_t k = 0; k < FUZZ_CHOICES; k++) {
            uint8_t n = (uint8_t)k;
            struct input first = {&n, 1};
            set_choice(device, &first, i, k);
        }
    }
}

static void write_profile(struct ss_device *device, struct input *in) {
    if (!ss_program.n_profiles) return;
    uint8_t what = byte(in);
    uint32_t profile = (uint32_t)(what >> 4) % ss_program.n_profiles, number = (what >> 1) % FUZZ_CHOICES;
    if (what & 1)
        set_member(device, in, profile, number);
    else
        set_choice(device, in, profile, number);
}

static void write_value_set(struct ss_device *device, struct input *in) {
    if (!ss_program.n_value_sets) return;
    uint32_t set = byte(in) % ss_program.n_value_sets, n = byte(in) % 8, words = ss_program.value_sets[set];
    uint64_t *values = calloc(n + 1, 2u * words * sizeof *values);
    if (!values) abort();
    for (uint32_t i = 0; i < n; i++) {
        uint64_t *value = values + 2u * words * i;
        uint8_t exact = byte(in);
        bytes(in, value, words * sizeof *value);
        if (exact & 1)
            memset(value + words, 0xff, words * sizeof *value);
        else
            bytes(in, value + words, words * sizeof *value);
        for (uint32_t k = 0; k < words; k++) value[k] &= value[words + k];
    }
    if (ss_value_set_write(device, set, values, n)) abort();
    free(values);
}

static void write_meter(struct ss_device *device, struct input *in) {
    if (!ss_program.n_meters) return;
    uint32_t array = byte(in) % ss_program.n_meters;
    uint64_t first = byte(in), n = byte(in) % 4;
    struct ss_meter_config config = meter_config(in);
    struct ss_meter out[3];
    ss_meter_access(device, array, first, n, NULL, &config, n & 1, out);
}

static void write_digest(struct ss_device *device, struct input *in) {
    uint8_t number = byte(in), how = byte(in), data[16];
    ss_digest_enable(device, number % 4, how & 1, how & 2);
    bytes(in, data, sizeof data);
    ss_digest_forget(device, number % 4, data, 1u << (how >> 6), 2);
}

static void write_group(struct ss_device *device, struct input *in) {
    uint8_t what = byte(in);
    struct ss_replica replicas[4];
    int32_t n = what >> 1 & 3;
    for (int32_t i = 0; i < n; i++) replicas[i] = (struct ss_replica){byte(in), byte(in)};
    ss_group_write(device, what & 1, byte(in) % 16, replicas, what & 8 ? -1 : n, what & 16 ? byte(in) : 0);
}

/* Frames that leave one after the other: which of them would be one super-frame. Frees them. */
static void together(struct ss_list *list) {
    struct ss_buf *frames[64];
    uint32_t n = 0;
    for (struct ss_buf *buf = list->head; buf && n < 64; buf = buf->next) frames[n++] = buf;
    for (uint32_t at = 0; at < n;) {
        struct ss_run run;
        struct ss_vnet vnet;
        uint8_t headers[SS_RUN_HEADERS];
        ss_run_find(frames + at, n - at, 1500, &run);
        if (run.frames == 0 || run.frames > n - at) abort();
        if (run.frames > 1) ss_run_headers(frames[at], &run, &vnet, headers);
        at += run.frames;
    }
    ss_list_free(list);
}

/* What a sender on the same machine may ask of the switch: checksums and segmentation that it left to the card. */
static void offload(struct input *in) {
    struct ss_vnet vnet;
    uint32_t len;
    bytes(in, &vnet, sizeof vnet);
    uint8_t *frame = frame_of(in, &len);
    if (!vnet.gso_type) {
        ss_complete_checksum(frame, len, vnet.csum_start, vnet.csum_offset);
        free(frame);
        return;
    }
    struct ss_list out = {0};
    uint32_t first = len ? byte(in) * 16u % (len + 1) : 0;
    struct ss_buf *buf = ss_buf_new(first);
    uint8_t *more = malloc(len - first ? len - first : 1); /* exact, for the sanitizer */
    if (!buf || !more) abort();
    memcpy(buf->data, frame, first);
    memcpy(more, frame + first, len - first);
    buf->len = len;
    ss_segment(buf, first, more, &vnet, &out);
    together(&out);
    free(more);
    free(frame);
}

static struct ss_device *the_device(void) {
    static struct ss_device *device;
    if (!device) {
        struct ss_fabric *fabric = ss_fabric_new(1, 1);
        if (!fabric || !(device = ss_device_new(fabric, 1, -1))) abort();
    }
    return device;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len) {
    struct ss_device *device = the_device();
    if (ss_device_load(device, &ss_program)) abort();
    ss_device_activate(device);
    make_profiles(device);
    struct input in = {data, len};
    while (in.len) {
        uint8_t op = byte(&in) % 20;
        if (op < 8)
            run_frame(device, &in);
        else if (op < 11)
            write_table(device, &in, op - 8);
        else if (op < 13)
            write_group(device, &in);
        else if (op < 14)
            offload(&in);
        else if (op < 15)
            write_table(device, &in, INSERT);
        else if (op < 16)
            write_profile(device, &in);
        else if (op < 17)
            write_value_set(device, &in);
        else if (op < 18)
            write_meter(device, &in);
        else if (op < 19)
            write_table(device, &in, byte(&in) & 1 ? IDLE : METER);
        else
            write_digest(device, &in);
    }
    return 0;
}

#ifdef FUZZ_STANDALONE
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        FILE *file = fopen(argv[i], "rb");
        if (!file) {
            perror(argv[i]);
            return 2;
        }
        static uint8_t data[1 << 20];
        size_t n = fread(data, 1, sizeof data, file);
        fclose(file);
        uint8_t *exact = malloc(n ? n : 1);
        if (!exact) return 2;
        memcpy(exact, data, n);
        LLVMFuzzerTestOneInput(exact, n);
        free(exact);
    }
    printf("%d inputs\n", argc - 1);
    return 0;
}
#endif
