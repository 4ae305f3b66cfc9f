// Repetition for the preprocessor, which has no loops.
//
//     INART_EACH_VALUE(F)   expands to   F(00) F(01) ... F(ff)     for INART_VALUES 256
//                                        F(00) ... F(3f)           for 64
//
// F is a macro of one argument, the value's index in hexadecimal; it builds names with ##. Every step below appends one
// hexadecimal digit. INART_VALUES is a build option: 4, 8, 16, 32, 64, 96, 128 or 256.
#ifndef INART_REPEAT_P4
#define INART_REPEAT_P4

#define INART_EACH_4(F, x)   F(x##0) F(x##1) F(x##2) F(x##3)
#define INART_EACH_8(F, x)   INART_EACH_4(F, x) F(x##4) F(x##5) F(x##6) F(x##7)
#define INART_EACH_16(F, x)  INART_EACH_8(F, x) F(x##8) F(x##9) F(x##a) F(x##b) F(x##c) F(x##d) F(x##e) F(x##f)
#define INART_EACH_32(F)     INART_EACH_16(F, 0) INART_EACH_16(F, 1)
#define INART_EACH_64(F)     INART_EACH_32(F) INART_EACH_16(F, 2) INART_EACH_16(F, 3)
#define INART_EACH_128(F)    INART_EACH_64(F) INART_EACH_16(F, 4) INART_EACH_16(F, 5) INART_EACH_16(F, 6) \
                             INART_EACH_16(F, 7)
#define INART_EACH_256(F)    INART_EACH_128(F) INART_EACH_16(F, 8) INART_EACH_16(F, 9) INART_EACH_16(F, a) \
                             INART_EACH_16(F, b) INART_EACH_16(F, c) INART_EACH_16(F, d) INART_EACH_16(F, e) \
                             INART_EACH_16(F, f)

#if INART_VALUES == 4
#define INART_EACH_VALUE(F) INART_EACH_4(F, 0)
#elif INART_VALUES == 8
#define INART_EACH_VALUE(F) INART_EACH_8(F, 0)
#elif INART_VALUES == 16
#define INART_EACH_VALUE(F) INART_EACH_16(F, 0)
#elif INART_VALUES == 32
#define INART_EACH_VALUE(F) INART_EACH_32(F)
#elif INART_VALUES == 64
#define INART_EACH_VALUE(F) INART_EACH_64(F)
#elif INART_VALUES == 96
#define INART_EACH_VALUE(F) INART_EACH_64(F) INART_EACH_16(F, 4) INART_EACH_16(F, 5)
#elif INART_VALUES == 128
#define INART_EACH_VALUE(F) INART_EACH_128(F)
#elif INART_VALUES == 256
#define INART_EACH_VALUE(F) INART_EACH_256(F)
#else
#error "INART_VALUES must be 4, 8, 16, 32, 64, 96, 128 or 256"
#endif

#endif
