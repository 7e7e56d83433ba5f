package grpc

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"
	"time"
)

// The descriptors are those of the Python package: the bytes with which vllm_engine_pb2 and common_pb2 of smg-grpc-proto 0.4.28
// begin, by their sha256.
func TestDescriptors(t *testing.T) {
	want := map[string]string{
		"vllm_engine.proto": "1bd11d21878d22144613282368c06866133bd8492b09b238915014e85799ea63",
		"common.proto":      "df9b7e51596814866ca31c76722a647ab329fc8d21506cae6fc2299d12617263",
	}
	for _, f := range files() {
		sum := sha256.Sum256(f.descriptor)
		if digest, known := want[f.name]; known && hex.EncodeToString(sum[:]) != digest {
			t.Errorf("%s: its descriptor of %d bytes has the sha256 %x, want %s", f.name, len(f.descriptor), sum, digest)
		}
		delete(want, f.name)
	}
	if len(want) > 0 {
		t.Errorf("not there: %v", want)
	}
}

func TestTimeouts(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"1H": time.Hour, "20M": 20 * time.Minute, "3S": 3 * time.Second, "100m": 100 * time.Millisecond, "7u": 7 * time.Microsecond, "99999999n": 99999999,
		"99999999H": 365 * 24 * time.Hour, "": 0, "1": 0, "H": 0, "-1S": 0, "1SS": 0, "123456789S": 0, "1.5S": 0,
	} {
		if got, err := parseTimeout(text); got != want || (err != nil) != (want == 0) {
			t.Errorf("%q is %v, %v, want %v", text, got, err, want)
		}
	}
}

// FuzzFields: what is read of any bytes is in them.
func FuzzFields(f *testing.F) {
	for _, seed := range []string{"", "\x08\x01", "\x12\x03abc", "\x0d\x00\x00\x80\x3f", "\x09\x00\x00\x00\x00\x00\x00\xf0\x3f", "\x0a\x03\x01\x82\x01", "\xff", "\x0a\xff\xff\xff\xff\x0f", "\x0b"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, message []byte) {
		total := 0
		_ = Fields(message, func(f Field) error {
			if f.Number < 1 {
				t.Errorf("field %d", f.Number)
			}
			total += 1 + len(f.Bytes())
			ids, err := f.Uint32s(nil)
			if err == nil && len(ids) > max(len(f.Bytes()), 1) {
				t.Errorf("%d numbers of %d bytes", len(ids), len(f.Bytes()))
			}
			_, _ = f.Text()
			return nil
		})
		if total > len(message) {
			t.Errorf("%d bytes of a message of %d", total, len(message))
		}
	})
}
