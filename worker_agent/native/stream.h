/* Writes that go past the processor's caches, for data that nobody reads soon. They save the read of each line that
 * they write, and leave the caches to packets. On processors other than x86-64 they are ordinary writes. */
#ifndef INART_STREAM_H
#define INART_STREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define INART_STREAM_LEAST (8u << 20) /* bytes: what is smaller may still be in a cache when it is read */

/* Copies `bytes` bytes, less than a line. Sizes come again and again in the same order, which processors predict; calls
 * of memcpy cost more. */
static inline void inart_stream_part(uint8_t *restrict to, const uint8_t *restrict from, size_t bytes) {
    size_t at = 0;
    for (size_t size = 32; size >= 4; size /= 2)
        if (bytes & size) {
            memcpy(to + at, from + at, size);
            at += size;
        }
    for (; at < bytes; at++) to[at] = from[at];
}

#ifdef __x86_64__
/* Writes one line, with as few writes as the processor can: it keeps only some tens of them while memory is busy (64
 * here), and does nothing else when there are more. `to` is the begin of a line. */
static inline void inart_stream_line(uint8_t *restrict to, const uint8_t *restrict from) {
#if defined(__AVX512F__)
    _mm512_stream_si512((__m512i *)(void *)to, _mm512_loadu_si512(from));
#elif defined(__AVX__)
    const __m256i *source = (const __m256i *)(const void *)from;
    __m256i *target = (__m256i *)(void *)to, a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
    _mm256_stream_si256(target, a);
    _mm256_stream_si256(target + 1, b);
#else
    const __m128i *source = (const __m128i *)(const void *)from;
    __m128i *target = (__m128i *)(void *)to, a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    __m128i c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
#endif
}
#endif

/* Copies memory: whole cache lines go past the caches, the parts of lines at both ends through them. A line that is
 * streamed in two parts (a chunk of 255 values ends within one) is written to memory twice, which takes three times as
 * long as all of the rest. */
static inline void inart_stream(void *restrict to, const void *restrict from, size_t bytes) {
#ifdef __x86_64__
    size_t at = -(uintptr_t)to & 63;
    at = at < bytes ? at : bytes;
    inart_stream_part(to, from, at);
    for (; at + 64 <= bytes; at += 64) inart_stream_line((uint8_t *)to + at, (const uint8_t *)from + at);
    inart_stream_part((uint8_t *)to + at, (const uint8_t *)from + at, bytes - at);
#else
    memcpy(to, from, bytes);
#endif
}

/* Waits until the writes are visible, before another thread is told of them. */
static inline void inart_stream_end(void) {
#ifdef __x86_64__
    _mm_sfence();
#endif
}

#endif
