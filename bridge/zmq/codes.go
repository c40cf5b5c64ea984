package zmq

// First bytes of values in the msgpack format. The library has them as variables, which the compiler cannot turn into
// jump tables.
const (
	codeFixMap   = 0x80 // to 0x8f
	codeFixArray = 0x90 // to 0x9f
	codeFixStr   = 0xa0 // to 0xbf
	codeNil      = 0xc0
	codeFalse    = 0xc2
	codeTrue     = 0xc3
	codeBin8     = 0xc4 // 0xc5 and 0xc6: 16 and 32
	codeBin32    = 0xc6
	codeExt8     = 0xc7 // 0xc8 and 0xc9: 16 and 32
	codeExt32    = 0xc9
	codeFloat32  = 0xca
	codeFloat64  = 0xcb
	codeUint8    = 0xcc
	codeUint16   = 0xcd
	codeUint32   = 0xce
	codeUint64   = 0xcf
	codeInt8     = 0xd0
	codeInt16    = 0xd1
	codeInt32    = 0xd2
	codeInt64    = 0xd3
	codeFixExt1  = 0xd4
	codeFixExt2  = 0xd5
	codeFixExt4  = 0xd6
	codeFixExt8  = 0xd7
	codeFixExt16 = 0xd8
	codeStr8     = 0xd9 // 0xda and 0xdb: 16 and 32
	codeStr32    = 0xdb
	codeArray16  = 0xdc
	codeArray32  = 0xdd
	codeMap16    = 0xde
	codeMap32    = 0xdf
)

func isArray(code byte) bool {
	return code&0xf0 == codeFixArray || code == codeArray16 || code == codeArray32
}

func isMap(code byte) bool {
	return code&0xf0 == codeFixMap || code == codeMap16 || code == codeMap32
}

func isString(code byte) bool {
	return code&0xe0 == codeFixStr || code >= codeStr8 && code <= codeStr32
}

// isFixedInt tells the integers that are their own first byte: 0 to 127 and -32 to -1.
func isFixedInt(code byte) bool { return code < 0x80 || code >= 0xe0 }

func isInt(code byte) bool { return isFixedInt(code) || code >= codeUint8 && code <= codeInt64 }
