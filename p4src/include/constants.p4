// Generated from p4src/protocol.json by python -m p4src.generate; edit that and run it again.
#ifndef INART_CONSTANTS_P4
#define INART_CONSTANTS_P4

const bit<8> INART_VERSION = 3;
const bit<32> INART_GROUP = 0xEF494E41;
const bit<16> INART_UDP_PORT_BASE = 0x5000;
const bit<16> INART_UDP_PORT_MASK = 0xF000;
const bit<48> INART_GATEWAY_MAC = 0x0200000000FE;

const bit<16> ETHERTYPE_IPV4 = 0x0800;
const bit<8> IPV4_PROTOCOL_UDP = 17;
// Of an IPv4 header's flags and offset: one of these bits at least is set in a fragment.
const bit<16> IPV4_FRAGMENT_MASK = 0x3FFF;

const bit<8> INART_FLAG_RESEND = 1;
const bit<8> INART_FLAG_RESULT = 2;
const bit<8> INART_FLAG_MAXIMUM = 4;

// Lengths in bytes without any value: of a frame, and as IPv4 and UDP have them in their headers.
const bit<32> INART_VALUES_OFFSET = 66;
const bit<16> INART_IPV4_LENGTH = 52;
const bit<16> INART_UDP_LENGTH = 32;

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

// The aggregation header, after UDP.
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
