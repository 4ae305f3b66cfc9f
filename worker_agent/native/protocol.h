/* Generated from p4src/protocol.json by python -m p4src.generate; edit that and run it again. */
#ifndef INART_PROTOCOL_H
#define INART_PROTOCOL_H

#define INART_VERSION 1
#define INART_ETHERTYPE 0x88B5
#define INART_GROUP_MAC {0x03, 0x49, 0x6e, 0x41, 0x72, 0x74}
#define INART_GROUP_MAC_0 0x03
#define INART_GROUP_MAC_1 0x49
#define INART_GROUP_MAC_2 0x6e
#define INART_GROUP_MAC_3 0x41
#define INART_GROUP_MAC_4 0x72
#define INART_GROUP_MAC_5 0x74
#define INART_GATEWAY_MAC {0x02, 0x00, 0x00, 0x00, 0x00, 0xfe}
#define INART_GATEWAY_MAC_0 0x02
#define INART_GATEWAY_MAC_1 0x00
#define INART_GATEWAY_MAC_2 0x00
#define INART_GATEWAY_MAC_3 0x00
#define INART_GATEWAY_MAC_4 0x00
#define INART_GATEWAY_MAC_5 0xfe

#define INART_FLAG_RESEND 1
#define INART_FLAG_RESULT 2
#define INART_FLAG_MAXIMUM 4

/* Bytes; offsets from the start of the frame; fields are big-endian. */
#define INART_ETHERNET_BYTES 14
#define INART_HEADER_BYTES 24
#define INART_OFFSET_VERSION 14
#define INART_OFFSET_FLAGS 15
#define INART_OFFSET_JOB 16
#define INART_OFFSET_LABEL 18
#define INART_OFFSET_EPOCH 22
#define INART_OFFSET_SEQUENCE 26
#define INART_OFFSET_BITMAP 30
#define INART_OFFSET_VALUES 38
#define INART_VALUE_BYTES 4
#define INART_FRAME_BYTES(values) (INART_OFFSET_VALUES + INART_VALUE_BYTES * (values))

#define INART_MAX_WORKERS 64

#endif
