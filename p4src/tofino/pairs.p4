// Repetition over the pairs of values: INART_EACH_PAIR(F) expands to F(00) F(01) ... as include/repeat.p4 does for
// values.
//
// A stateful ALU's cell has two words: value j of the first half of a packet shares its cells with value j of the
// second half.
#ifndef INART_PAIRS_P4
#define INART_PAIRS_P4

// With INART_FOLD a pass has half of a packet's values, so the pairs are those of half as many values.
#if INART_VALUES == 4 || (defined(INART_FOLD) && INART_VALUES == 8)
#define INART_EACH_PAIR(F) F(00) F(01)
#elif INART_VALUES == 8
#define INART_EACH_PAIR(F) INART_EACH_4(F, 0)
#elif INART_VALUES == 16
#define INART_EACH_PAIR(F) INART_EACH_8(F, 0)
#elif INART_VALUES == 32
#define INART_EACH_PAIR(F) INART_EACH_16(F, 0)
#elif INART_VALUES == 64 || (defined(INART_FOLD) && INART_VALUES == 128)
#define INART_EACH_PAIR(F) INART_EACH_32(F)
#elif INART_VALUES == 96
#define INART_EACH_PAIR(F) INART_EACH_32(F) INART_EACH_16(F, 2)
#elif INART_VALUES == 128
#define INART_EACH_PAIR(F) INART_EACH_64(F)
#else
#error "INART_VALUES must be 4, 8, 16, 32, 64, 96 or 128 on Tofino"
#endif

#endif
