package clikit

import (
	"bytes"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const someID = "i-01m7yenhn8gytcpyseftb5d4tc"

func renderTable(t require.TestingT, width int, rows ...[]string) []string {
	var out bytes.Buffer
	require.NoError(t, WriteTableWithin(&out, width, append([][]string{{"NAME", "ID", "REASON"}}, rows...)))
	return slices.Collect(strings.Lines(out.String()))
}

func TestLongCellsAreCutOnATerminal(t *testing.T) {
	long := strings.Repeat("because ", 40)
	lines := renderTable(t, 100, []string{"a", someID, long}, []string{"b", someID, "-"})
	require.Len(t, lines, 3)
	assert.Equal(t, 100, utf8.RuneCountInString(strings.TrimSuffix(lines[1], "\n")))
	assert.True(t, strings.HasSuffix(lines[1], "…\n"))
	assert.Contains(t, lines[1], someID)
	assert.Equal(t, "b     "+someID+"  -\n", lines[2])

	whole := renderTable(t, 0, []string{"a", someID, long})
	assert.Contains(t, whole[1], long)
	narrow := renderTable(t, 20, []string{"a", someID, long})
	assert.Contains(t, narrow[1], someID, "an ID is of no use in part")
}

func TestTerminalWidthOfFile(t *testing.T) {
	file, err := os.Create(t.TempDir() + "/out")
	require.NoError(t, err)
	defer func() { assert.NoError(t, file.Close()) }()
	for _, out := range []io.Writer{file, &bytes.Buffer{}} {
		width, _ := TerminalSize(out)
		assert.Zero(t, width)
	}
}

func TestEmptyCellsAreDashes(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, WriteTable(&out, []string{"A", ""}, [][]string{{"", "x"}}))
	assert.Equal(t, "A   \n-   x\n", out.String())
}

// Lines fit, unless every column is as narrow as it may be. Short cells are not cut.
func TestTableFitsTerminalWidth(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cell := rapid.StringMatching(`[a-zé…]{1,120}`)
		var rows [][]string
		for range rapid.IntRange(0, 5).Draw(t, "rows") {
			rows = append(rows, []string{cell.Draw(t, "name"), cell.Draw(t, "id"), cell.Draw(t, "reason")})
		}
		width := rapid.IntRange(3*uncutWidth+2*columnGap, 400).Draw(t, "width")
		lines := renderTable(t, width, rows...)
		require.Len(t, lines, len(rows)+1)
		for i, line := range lines {
			assert.LessOrEqual(t, utf8.RuneCountInString(strings.TrimSuffix(line, "\n")), width)
			if i == 0 {
				continue
			}
			for _, c := range rows[i-1] {
				if utf8.RuneCountInString(c) <= uncutWidth {
					assert.Contains(t, line, c)
				}
			}
		}
	})
}
