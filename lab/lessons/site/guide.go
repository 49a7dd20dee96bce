package site

import (
	"html/template"

	"github.com/ccmlab/ccmlab/lab/lessons"
)

// Guide is a lesson beside the picture of its lab: its text, and how far the learner is.
type Guide struct {
	Title string `json:"title"`
	// Opening is HTML, as a task's Do is. Both are made of the project's own texts.
	Opening template.HTML `json:"opening"`
	Tasks   []GuideTask   `json:"tasks"`
	// Problem says why the current task is not done, or could not be checked.
	Problem string `json:"problem,omitempty"`
}

// GuideTask is a task of a Guide. Do is there for those that are done, and for the current one.
type GuideTask struct {
	Title   string        `json:"title"`
	Do      template.HTML `json:"do,omitempty"`
	Current bool          `json:"current,omitempty"`
	Done    bool          `json:"done,omitempty"`
	// Seen is what was seen when it was done.
	Seen string `json:"seen,omitempty"`
}

// NewGuide makes the guide of a learner's lesson. What is still to come is named only: its text may tell the
// answer of the task before.
func NewGuide(st *lessons.Status) (*Guide, error) {
	opening, err := renderMarkdown(st.Lesson.Opening)
	if err != nil {
		return nil, err
	}
	g := &Guide{Title: st.Lesson.Title, Opening: opening}
	if st.Problem != nil {
		g.Problem = st.Problem.Error()
	}
	for _, t := range st.Tasks {
		task := GuideTask{Title: t.Title, Current: t.Current}
		if t.Done != nil {
			task.Done, task.Seen = true, t.Done.Seen
		}
		if task.Done || task.Current {
			if task.Do, err = renderMarkdown(t.Do); err != nil {
				return nil, err
			}
		}
		g.Tasks = append(g.Tasks, task)
	}
	return g, nil
}
