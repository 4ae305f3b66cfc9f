/* Hash tables with linear probing (struct ss_map); the caller of a look-up compares the keys. */
#include <stdlib.h>

#include "runtime.h"

#define FIRST_SLOTS 8u

/* Makes room for one more item. Returns false without memory; the map is then unchanged. */
bool ss_map_reserve(struct ss_map *map) {
    uint32_t now = map->slots ? map->mask + 1 : 0, n = now ? 2 * now : FIRST_SLOTS;
    if ((map->used + 1) * 2 <= now) return true;
    struct ss_map larger = {calloc(n, sizeof *larger.slots), n - 1, 0};
    if (!larger.slots) return false;
    for (uint32_t i = 0; i < now; i++)
        if (map->slots[i].item)
            ss_map_add(&larger, map->slots[i].hash, map->slots[i].item)->chain = map->slots[i].chain;
    free(map->slots);
    *map = larger;
    return true;
}

struct ss_slot *ss_map_add(struct ss_map *map, uint32_t hash, void *item) {
    uint32_t i = hash & map->mask;
    while (map->slots[i].item) i = (i + 1) & map->mask;
    map->slots[i] = (struct ss_slot){hash, 0, item};
    map->used++;
    return &map->slots[i];
}

void ss_map_remove(struct ss_map *map, struct ss_slot *slot) {
    uint32_t hole = (uint32_t)(slot - map->slots);
    for (uint32_t i = (hole + 1) & map->mask; map->slots[i].item; i = (i + 1) & map->mask) {
        uint32_t home = map->slots[i].hash & map->mask;
        if (((i - home) & map->mask) >= ((i - hole) & map->mask)) {
            map->slots[hole] = map->slots[i];
            hole = i;
        }
    }
    map->slots[hole] = (struct ss_slot){0, 0, NULL};
    map->used--;
}

void ss_map_free(struct ss_map *map) {
    free(map->slots);
    *map = (struct ss_map){NULL, 0, 0};
}
