package harness

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/procfs"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
	mounts := []*procfs.MountInfo{
		{MountPoint: "/", FSType: "ext4"}, {MountPoint: "/tmp", FSType: "tmpfs"},
		{MountPoint: "/tmpfiles", FSType: "xfs"}, {MountPoint: "/tmp", FSType: "btrfs"},
	}
	assert.Equal(t, "ext4", fileSystem(mounts, "/home/me"))
	assert.Equal(t, "btrfs", fileSystem(mounts, "/tmp/bench-1"))
	assert.Equal(t, "xfs", fileSystem(mounts, "/tmpfiles"))
	assert.Equal(t, "unknown", fileSystem(nil, "/tmp"))
}

func TestGrouped(t *testing.T) {
	for v, want := range map[float64]string{
		0: "0.0", 3.14159: "3.1", 42: "42", 999: "999", 1000: "1,000", 1234567.8: "1,234,568",
	} {
		assert.Equal(t, want, Grouped(v))
	}
}

func TestCheckFlags(t *testing.T) {
	o := Options{
		Output: "table", Rows: "throughput,udp", Figures: []string{"throughput-down", "throughput-up", "udp", "idle"},
	}
	require.NoError(t, o.Check())
	assert.Equal(t, []string{"throughput-down", "throughput-up", "udp"}, o.Selected())
	o.Rows = "udp,speed"
	require.ErrorContains(t, o.Check(), `no figure "speed": choose from throughput-down,`)
	o.Output = "xml"
	require.ErrorContains(t, o.Check(), "choose table or json")
}

type testReport struct {
	Rows []Row `json:"rows"`
}

func (r testReport) Table() Table {
	return Table{Head: []string{"quick"}, Columns: "FIGURE\tRATIO", Rows: r.Rows, Notes: []string{"udp: all"}}
}

func TestPrint(t *testing.T) {
	yes, no := true, false
	r := testReport{[]Row{
		{Cells: []string{"get", "2×"}, Holds: &yes}, {Cells: []string{"list", "0.9×"}, Holds: &no},
		{Cells: []string{"peer", ""}},
	}}
	var out strings.Builder
	require.NoError(t, Print(&out, "table", r))
	assert.Equal(t, "quick\n\nFIGURE   RATIO   HOLDS\nget      2×      ✓\n"+
		"list     0.9×    ✗\npeer     -       -\nudp: all\n", out.String())
	out.Reset()
	require.NoError(t, Print(&out, "json", r))
	assert.Contains(t, out.String(), `"Holds": true`)
}
