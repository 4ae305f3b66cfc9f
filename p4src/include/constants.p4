// Generated from p4src/protocol.json by python -m p4src.generate; edit that and run it again.
#ifndef INART_CONSTANTS_P4
#define INART_CONSTANTS_P4

const bit<8> INART_VERSION = 1;
const bit<16> INART_ETHERTYPE = 0x88B5;
const bit<48> INART_GROUP_MAC = 0x03496E417274;
const bit<48> INART_GATEWAY_MAC = 0x0200000000FE;

const bit<8> INART_FLAG_RESEND = 1;
const bit<8> INART_FLAG_RESULT = 2;
const bit<8> INART_FLAG_MAXIMUM = 4;

// Bytes of a frame before its first value: Ethernet and the aggregation header.
const bit<32> INART_VALUES_OFFSET = 38;

// Verdicts: indices into verdict_counter.
const bit<8> INART_VERDICT_FORWARDED = 0;
const bit<8> INART_VERDICT_REPLICATED = 1;
const bit<8> INART_VERDICT_ABSORBED = 2;
const bit<8> INART_VERDICT_COMPLETED = 3;
const bit<8> INART_VERDICT_DUPLICATE = 4;
const bit<8> INART_VERDICT_STALE = 5;
const bit<8> INART_VERDICT_FLUSHED = 6;
const bit<8> INART_VERDICT_REFUSED = 7;
const bit<8> INART_VERDICT_MALFORMED = 8;
const bit<8> INART_VERDICT_UNKNOWN = 9;
#define INART_VERDICTS 10

// The aggregation header, after Ethernet.
header inart_t {
    bit<8> version;
    bit<8> flags;
    bit<16> job;
    bit<32> label;
    bit<32> epoch;
    bit<32> sequence;
    bit<64> bitmap;
}

#endif
