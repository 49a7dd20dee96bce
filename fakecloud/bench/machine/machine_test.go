package machine

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestPercentile(t *testing.T) {
	ten := Latencies{1, 2, 3, 4, 5, 6, 7, 8, 9, 10}
	for p, want := range map[float64]time.Duration{0: 1, 10: 1, 11: 2, 50: 5, 90: 9, 99: 10, 100: 10} {
		assert.Equal(t, want, ten.Percentile(p), "p%v", p)
	}
	assert.Zero(t, Latencies(nil).Percentile(99))
	assert.EqualValues(t, 7, Latencies{7}.Percentile(50))
}

func TestFileSystem(t *testing.T) {
	mounts := "1 0 254:0 / / rw - ext4 /dev/vda rw\n" +
		"2 1 0:5 / /tmp rw shared:1 - tmpfs tmpfs rw\n" +
		"3 1 0:6 / /tmpfiles rw - xfs /dev/vdb rw\n" +
		"4 2 0:7 / /tmp rw - btrfs /dev/vdc rw\n" +
		"nonsense\n"
	assert.Equal(t, "ext4", fileSystem(mounts, "/home/me"))
	assert.Equal(t, "btrfs", fileSystem(mounts, "/tmp/bench-1"))
	assert.Equal(t, "xfs", fileSystem(mounts, "/tmpfiles"))
	assert.Equal(t, "unknown", fileSystem("", "/tmp"))
}

func TestCPUOf(t *testing.T) {
	assert.Equal(t, 1500*time.Millisecond, cpuOf("42 (a) b) S 1 1 1 0 -1 0 0 0 0 0 100 50 7 7 20 0"))
	assert.Zero(t, cpuOf(""))
	assert.Zero(t, cpuOf("42 (a) S 1"))
}

func TestBusyTime(t *testing.T) {
	assert.Equal(t, 430*time.Millisecond, BusyTime("cpu  10 2 20 1000 500 3 4 4 9 9\ncpu0 1 1 1 1 1 1 1 1\n"))
	assert.Zero(t, BusyTime(""))
	assert.Zero(t, BusyTime("cpu 1 2 3"))
}

func TestGrouped(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0.0", 3.14159: "3.1", 42: "42", 999: "999", 1000: "1,000", 1234567.8: "1,234,568",
	} {
		assert.Equal(t, want, Grouped(v))
	}
}
