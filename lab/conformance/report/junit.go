package report

// The report as CI systems read it: JUnit's XML, of which there is no standard,
// in the form that all of them take.

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"

	"github.com/ccmlab/ccmlab/lab/conformance"
)

type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Skipped  int          `xml:"skipped,attr"`
	Time     float64      `xml:"time,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name       string          `xml:"name,attr"`
	Tests      int             `xml:"tests,attr"`
	Failures   int             `xml:"failures,attr"`
	Skipped    int             `xml:"skipped,attr"`
	Time       float64         `xml:"time,attr"`
	Timestamp  string          `xml:"timestamp,attr"`
	Properties []junitProperty `xml:"properties>property"`
	Cases      []junitCase     `xml:"testcase"`
}

type junitProperty struct {
	Name  string `xml:"name,attr"`
	Value string `xml:"value,attr"`
}

type junitCase struct {
	Suite   string        `xml:"classname,attr"`
	Name    string        `xml:"name,attr"`
	Time    float64       `xml:"time,attr"`
	Skipped *junitMessage `xml:"skipped"`
	Failure *junitMessage `xml:"failure"`
	Out     string        `xml:"system-out,omitempty"`
}

type junitMessage struct {
	Message string `xml:"message,attr"`
	Text    string `xml:",chardata"`
}

// JUnit is the report with one suite for each profile. It has a failure exactly
// if the report has not passed: what failed and is not required is skipped
// there. So is what is blocked, or one cause would be shown as many failures.
func JUnit(r *conformance.Report) ([]byte, error) {
	all := junitSuites{Name: "conformance", Time: r.Seconds}
	for _, p := range conformance.Profiles {
		s := junitSuite{Name: string(p)}
		for _, t := range r.Tests {
			if t.Profile == p {
				s.addCase(junitCaseOf(t))
			}
		}
		if s.Tests > 0 {
			all.addSuite(s, r)
		}
	}
	if why := runFailure(r); why != "" {
		s := junitSuite{Name: "Run"}
		message, _, _ := strings.Cut(why, "\n")
		s.addCase(junitCase{Suite: s.Name, Name: "run", Failure: &junitMessage{message, why}})
		all.addSuite(s, r)
	}
	data, err := xml.MarshalIndent(all, "", "  ")
	return append([]byte(xml.Header), append(data, '\n')...), err
}

// runFailure says why the run as a whole has failed, beside its tests.
func runFailure(r *conformance.Report) string {
	if r.Unfinished != "" {
		return "the run was not finished\n" + r.Unfinished
	}
	if len(r.Crashes) > 0 {
		return fmt.Sprintf("the CCM ended by itself %d times\n%s", len(r.Crashes), strings.Join(r.Crashes, "\n\n"))
	}
	passed, blocked := false, false
	for _, t := range r.Tests {
		if t.Result == conformance.Failed && t.Required {
			return ""
		}
		passed = passed || t.Result == conformance.Passed
		blocked = blocked || t.Result == conformance.Blocked && t.Required
	}
	switch {
	case blocked: // Nothing has failed that blocks it, or that would be said.
		return "what is required has proved nothing, since a fault was not made"
	case passed:
		return ""
	}
	return "not a single test passed"
}

func (j *junitSuites) addSuite(s junitSuite, r *conformance.Report) {
	s.Timestamp = r.Date.UTC().Format(time.RFC3339)
	s.Properties = []junitProperty{
		{"implementation", strings.TrimSpace(r.Implementation.Name + " " + r.Implementation.Version)},
		{"cluster", strings.TrimSpace(r.Cluster.Name + " " + r.Cluster.Version)},
		{"suite", strings.TrimSpace(r.Suite.Name + " " + r.Suite.Version)},
	}
	j.Tests += s.Tests
	j.Failures += s.Failures
	j.Skipped += s.Skipped
	j.Suites = append(j.Suites, s)
}

func (j *junitSuite) addCase(c junitCase) {
	j.Tests++
	j.Time += c.Time
	if c.Failure != nil {
		j.Failures++
	}
	if c.Skipped != nil {
		j.Skipped++
	}
	j.Cases = append(j.Cases, c)
}

func junitCaseOf(t conformance.TestReport) junitCase {
	c := junitCase{Suite: string(t.Profile), Name: t.ID, Time: t.Seconds, Out: strings.Join(t.Notes, "\n")}
	reasons := strings.Join(t.Reasons, "\n")
	message, _, _ := strings.Cut(reasons, "\n")
	switch {
	case t.Result == conformance.Skipped:
		c.Skipped = &junitMessage{message, reasons}
	case t.Result == conformance.Blocked:
		c.Skipped = &junitMessage{"blocked " + t.WhyBlocked(), reasons}
	case t.Result == conformance.Failed && t.Required:
		c.Failure = &junitMessage{message, reasons}
	case t.Result == conformance.Failed:
		c.Skipped = &junitMessage{"not required: " + message, reasons}
	}
	return c
}
