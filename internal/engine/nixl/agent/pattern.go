package agent

import "encoding/binary"

// Fill writes the contents of a block, which follow from its hash: whatever the type of the cache, float32, bfloat16, float16 or
// fp8, every value is finite, positive and below 1.
func Fill(p []byte, hash uint64) {
	var word [8]byte
	for i := 0; i < len(p); i += len(word) {
		// SplitMix64: each word of each block differs from the others.
		hash += 0x9e3779b97f4a7c15
		z := (hash ^ hash>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		binary.LittleEndian.PutUint64(word[:], (z^z>>31)&0x0707070707070707|0x3030303030303030)
		copy(p[i:], word[:])
	}
}

// WrongBlocks counts the blocks whose contents are not those of their hashes. Block i is p[i*len(p)/len(hashes):].
func WrongBlocks(p []byte, hashes []uint64) int {
	if len(hashes) == 0 {
		return 0
	}
	wrong, size := 0, len(p)/len(hashes)
	want := make([]byte, size)
	for i, hash := range hashes {
		if Fill(want, hash); string(want) != string(p[i*size:(i+1)*size]) {
			wrong++
		}
	}
	return wrong
}
