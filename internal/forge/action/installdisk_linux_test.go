package action_test

import (
	"bytes"
	"crypto/rand"
	"syscall"
	"testing"
)

// TestInstallOnFullDisk: a disk that fills up is told, and nothing half-written is kept.
func TestInstallOnFullDisk(t *testing.T) {
	tests := []struct{ name, folder string }{{"download", "temp"}, {"tool cache", "tools"}}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRunner(t, "linux_amd64", "vllm-vcr")
			noise := make([]byte, 256<<10)
			rand.Read(noise)
			content := archive(t, "vllm-vcr", append([]byte(says+"exit\n"), noise...))
			r.assets["/v1.2.3/vllm-vcr_1.2.3_linux_amd64.tar.gz"] = content
			sums := digest(content) + "  vllm-vcr_1.2.3_linux_amd64.tar.gz\n"
			writeFile(t, r.path("action/release/checksums.txt"), bytes.NewBufferString(sums).Bytes())
			if err := syscall.Mount("tmpfs", r.path(test.folder), "tmpfs", 0, "size=64k"); err != nil {
				t.Skipf("mounting a small disk: %v", err)
			}
			t.Cleanup(func() { syscall.Unmount(r.path(test.folder), 0) })
			done := r.install(t)
			if test.folder == "temp" {
				r.refuses(t, done, 3, "cannot be written, is the disk full")
				return
			}
			r.works(t, done) // this job has it, the next one downloads it again
			if left := r.left(t, "tools"); left != nil {
				t.Errorf("left in the tool cache: %v", left)
			}
		})
	}
}
