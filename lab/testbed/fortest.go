package testbed

import "context"

// T is what a bed needs of a test. *testing.T and *testing.B implement it.
type T interface {
	Helper()
	Context() context.Context
	Failed() bool
	Fatal(args ...any)
	Logf(format string, args ...any)
	Skipf(format string, args ...any)
	Errorf(format string, args ...any)
	Cleanup(func())
}

// logLines is how many lines of each log are printed when a test fails.
const logLines = 60

// ForTest is New for a test, which is skipped where the programs have not been built.
// The bed is closed at the end of the test and its subtests; if they have failed, its
// logs are printed first.
func ForTest(t T, o Options) *Bed {
	t.Helper()
	if err := Check(o); err != nil {
		t.Skipf("a control plane is needed: %v", err)
	}
	b, err := New(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the bed's logs:\n%s", b.Logs(logLines))
		}
		if err := b.Close(); err != nil {
			t.Errorf("closing the bed: %v", err)
		}
	})
	return b
}
