/* A map from labels to numbers, by open addressing, which is filled once per configuration. */
#ifndef INART_LABELS_H
#define INART_LABELS_H

#include <stdint.h>
#include <stdlib.h>

struct label_map {
    uint32_t mask;
    uint32_t *labels;
    int32_t *numbers; /* -1: free */
};

static inline int label_map_make(struct label_map *map, uint32_t entries) {
    uint32_t size = 8;
    while (size < 4 * entries) size *= 2;
    map->mask = size - 1;
    map->labels = calloc(size, sizeof *map->labels);
    map->numbers = malloc(size * sizeof *map->numbers);
    if (!map->labels || !map->numbers) return -1;
    for (uint32_t i = 0; i < size; i++) map->numbers[i] = -1;
    return 0;
}

static inline void label_map_free(struct label_map *map) {
    free(map->labels);
    free(map->numbers);
    map->labels = NULL;
    map->numbers = NULL;
}

static inline uint32_t label_map_slot(const struct label_map *map, uint32_t label) {
    uint32_t i = label * 2654435761u >> 7 & map->mask;
    while (map->numbers[i] >= 0 && map->labels[i] != label) i = (i + 1) & map->mask;
    return i;
}

static inline void label_map_set(struct label_map *map, uint32_t label, int32_t number) {
    uint32_t i = label_map_slot(map, label);
    map->labels[i] = label;
    map->numbers[i] = number;
}

static inline int32_t label_map_get(const struct label_map *map, uint32_t label) /* -1: unknown */
{
    return map->numbers[label_map_slot(map, label)];
}

#endif
