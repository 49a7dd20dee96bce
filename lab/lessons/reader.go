package lessons

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// reader is whom the texts of a lesson are for.
type reader struct {
	// lab is the name of the lesson's lab.
	lab string
	// seat decides which of a lesson's values the texts have; "" is the printed lesson.
	seat string
}

// labMark stands in the texts for the name of the lesson's lab.
const labMark = "{lab}"

// fillIn returns a text of a lesson with this reader's values.
func (r reader) fillIn(lesson string, varies Variation, text string) string {
	marks := []string{labMark, r.lab}
	for name, values := range varies.Values {
		marks = append(marks, "{"+name+"}", fmt.Sprint(values[r.pickIndex(lesson+" "+name, len(values))]))
	}
	for name, answers := range varies.Choices {
		order := slices.Clone(answers)
		if r.seat != "" {
			random := rand.New(rand.NewPCG(hashOf(r.seat), hashOf(lesson+" "+name)))
			random.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		}
		for i, answer := range order {
			marks = append(marks, "{"+name+"."+answer+"}", string(rune('a'+i)))
		}
		text = sortItems(text, name, order)
	}
	return strings.NewReplacer(marks...).Replace(text)
}

// numberRE matches the number of a seat in a classroom.
var numberRE = regexp.MustCompile(`\d+$`)

// pickIndex returns a number below n, which differs between neighbours in a classroom.
func (r reader) pickIndex(what string, n int) int {
	if r.seat == "" || n == 0 {
		return 0
	}
	number, _ := strconv.ParseUint(numberRE.FindString(r.seat), 10, 32)
	return int((hashOf(what+numberRE.ReplaceAllString(r.seat, "")) + number) % uint64(n))
}

func hashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text))
	return h.Sum64()
}

// sortItems sorts the list whose items begin with the mark of one of the answers.
func sortItems(text, name string, order []string) string {
	item := `- \*\*\{` + regexp.QuoteMeta(name) + `\.([a-z]+)\}\*\*.*\n(?:  .*\n)*`
	itemRE, listRE := regexp.MustCompile(item), regexp.MustCompile(`(?m)(?:^`+item+`)+`)
	return listRE.ReplaceAllStringFunc(text, func(list string) string {
		items := itemRE.FindAllString(list, -1)
		slices.SortStableFunc(items, func(a, b string) int {
			place := func(item string) int { return slices.Index(order, itemRE.FindStringSubmatch(item)[1]) }
			return place(a) - place(b)
		})
		return strings.Join(items, "")
	})
}
