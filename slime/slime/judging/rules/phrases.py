"""How people and tools react, as tables of phrases: what the rule judge knows, apart from how it reasons.

A table is a list of forms, one a line, matched against one lower-case clause of a message. In a form, `<thing>`
stands for any word of that vocabulary, `...` for up to three words, and everything else is a regular expression
between word boundaries. The forms are grammar ("you forgot", "too <quality>"), not sentences; how a clause feels
beyond them is left to the sentiment lexicon.
"""

# ruff: noqa: E501 - tables: one form a line
from __future__ import annotations

import re

VOCABULARY = {
    # What people call the reply they have just read.
    "thing": "it|this|that|them|these|those|everything|(?:the|your) (?:whole |last |first |second |final |other )?"
    "(?:answer|reply|response|text|result|output|code|function|query|summary|e-?mail|draft|version|solution|"
    "explanation|tone|style|wording|ending|plan|poem|translation|paragraph|sentence|part|point|line|story)",
    # What they call its form.
    "form": "bold(?: text)?|italics?|markdown|bullets?|bullet ?points?|(?:numbered )?lists?|headings?|headlines?|tables?|box|"
    "boxed(?: answers?)?|boxes|emojis?|asterisks|stars|latex|code ?blocks?|plain(?:ly)?|prose|formatting|capitals|caps|"
    "jargon|fluff|filler|cliches|steps|decoration|paragraphs?",
    "quality": "short|brief|long|simple|clear|concise|formal|friendly|detailed|casual|polite|nice|kind|warm|terse|"
    "verbose|wordy|precise|specific|encouraging|serious|direct|technical|complicated|vague|literal|sad|happy|slow|"
    "fast|loud|tidy|dry|stiff|plain|packed|pushy|expensive|generic|robotic|colloquial|neutral|cheerful|dramatic",
    "comparative": "shorter|briefer|longer|simpler|clearer|friendlier|nicer|kinder|warmer|tidier|plainer|happier|cheaper|"
    "faster|slower|better|terser|\\w+ier|(?:more|less) (?!than\\b)\\w+",
    "edit": "shorten|simplify|condense|expand(?: on)?|reformat|restructure|reorder|tighten|soften|tone down|trim|"
    "elaborate(?: on)?|clean up|drop|remove|delete|omit|leave out|take out|cut(?: out)?|get rid of|strip|skip|avoid|"
    "replace|swap|rename|change|adjust|edit|alter|tweak|slow|speed|split|merge|mention|address",
    "good": "perfect(?:ly)?|exactly|excellent|brilliant|awesome|amazing|fantastic|wonderful|superb|lovely|great|beautiful|"
    "marvellous|stunning|stellar|sweet|bingo|bravo|nice|terrific|outstanding|flawless|yay|wow|phew|cool|neat|handy|"
    "helpful|useful|impressive|yum|tasty|delicious|yes|yep|yup|correct|right",
    "bad": "wrong|incorrect|mistaken|false|off|nonsense|rubbish|garbage|useless|terrible|awful|horrible|unusable|"
    "unreadable|broken|buggy|inaccurate|outdated|messy|ugly|confusing|boring|unhelpful|worse|bad|disappointing|"
    "a mistake|an error|a mess|no good|no use|not true|closed",
    "fails": "fails?|failed|crash(?:es|ed)?|throws?|threw|hangs|hung|breaks|broke|freezes|froze|loops forever|errors out",
    "works": "works?|worked|helps|helped|did it|did the (?:trick|job)|does the (?:trick|job)|runs|passes|compiles|fits|"
    "solved? it|makes sense|made sense|clears (?:it|that|things) up|answers (?:it|that|my question)|checks? out|"
    "reads well|looks? (?:good|right|great|fine|correct|lovely|perfect)",
    "done": "done|put|said|explained|written|spotted|structured|handled",
}

CONTENT_FORMS = r"""
no need to \w+(?: \w+){0,2}|no (?:complaints?|problems?|worries|need|notes|objections?|further questions|more questions|wonder)
nothing (?:to (?:add|fix|change|correct)|wrong|missing)
not (?:bad|wrong|too (?:bad|shabby|long|short)|bad at all)
(?:couldn't|could not|can't|cannot) (?!you)(?:\w+ ){1,6}(?:better|clearer|nicer|happier|more happy)
(?:don't|do not|wouldn't|would not) change (?:a thing|anything|a word|it)
keep (?:it up|them coming|doing (?:that|this|it)|writing ... (?:way|up))
you(?:'re| are| were) (?:absolutely |so |quite )?right
(?:my|was my|that was my) (?:mistake|fault|bad)
best ... (?:i've|i have|ever)
(?<!not )(?:exactly|just|precisely|everything|all) (?:\w+ ){0,3}i (?:was looking for|was after|need|needed|wanted|asked for|meant|had in mind)
"""
"""Sounds like a complaint and is the opposite."""

THANKS_FORMS = r"""
thanks?(?! for nothing)|thank you|thank u|thx|tysm|cheers|merci|gracias|danke|ty
(?:much |really |greatly )?appreciated?|grateful|much obliged
you(?:'re| are) (?:a |an |the )?(?:real |absolute )?(?:star|legend|genius|hero|lifesaver|angel|gem|best|amazing|great|awesome|brilliant)
"""

PRAISE_FORMS = r"""
<good>
(?:it|that|this|which|everything|all|the \w+|my \w+|they|all my tests) (?:now |all |really |totally |finally |just |even )*(?:<works>)
(?:<works>) (?:now|fine|great|perfectly|well|first time|out of the box|for me|as expected|like a charm)
(?:i|we|she|he|they|wife|husband|kids|everyone|everybody|boss|teacher|mum|mom|client)? ?(?:really |absolutely |so )?(?:love|loved|loves|enjoyed|adore) (?:it|this|that|how|the|your|them)
i (?:really |do )?like (?:it|this|that|how|the way|your)
(?:well|nicely|beautifully|neatly|clearly) (?:<done>)
(?:good|solid|fine|clean|clever|smart) (?:answer|job|work|one|stuff|point|catch|idea|explanation|reply|find|summary|solution|tips?|start|news)
spot on|on point|nailed it|well done|good to know|good enough|that's it|that was it|that's (?:all of them|better|the one|clear|how i like it)
(?:just|exactly|precisely) (?:what|how|the \w+|as) i
makes (?:a lot of |perfect |total )?sense|got it|understood|now i (?:get|see|understand)|(?:finally|now) i get it|i see now|much (?:better|clearer|nicer)
solved|sorted|fixed(?: it)?|lgtm|ship it|merging|merged|pushing|booked|approved|sent it|saved my \w+|saved me|a\+|10/10|gold|success|haha|impressed
(?:teacher|boss|client|customer|kids|tests?|build|he|she|they) ... (?:happy|pleased|delighted|green|accepted|approved|answered|passe[sd])
stable since|tasted (?:great|good)|making it tonight|we'll (?:do|take|use) (?:that|it|this)|i'll (?:send|use|take|print|buy|try|book) (?:it|that|this)
"""

MOVING_ON_FORMS = r"""
next (?:one|question|problem|step|task|topic|up|item|exercise|thing|bug)|moving on|on to the next|onwards?
^next|^(?:(?:ok|okay|right|alright|so|good|great|and) )?now(?! it| that| this| the| you| there)
(?:yet )?another (?:one|question|problem|thing|task|topic|exercise)
one (?:more|last|further|other) (?:question|thing|problem|task)|by the way|a (?:new|different|second) (?:question|topic|problem|task)|here(?:'s| is) another
let's (?:continue|go on|move on|proceed|do|go with|take|look at|turn to|start|book|use)
^(?:(?:yes|yep|sure|ok|okay|great|fine|good|please) )*(?:go ahead|go on|continue|proceed|carry on|keep going|commit it|ship it|do it)
that was all|that's all|that is all|see you|bye|goodbye|good ?night|i(?:'m| am) done|done for (?:today|now)|talk (?:later|soon)
(?:and|but) (?:in|for|of|if|what|how|this|the same)
what about
"""

ASSENT = frozenset(
    re.findall(r"\w+", "yes yep yup yeah sure ok okay correct right exactly go ahead do it please on continue proceed")
)
"""What a person answers to a closed question: consent, and no word about the reply."""

REJECTION_FORMS = r"""
^(?:(?:um+|hm+|oh|well|but|and|sorry|argh|ugh|wait|thanks) )*(?:no|nope|nah|wrong|incorrect|false|meh|nonsense)(?: no| not| that| this| it| you| i| way| sorry| the| \d.*| dates?| \w+)?$
^(?:(?:um+|hm+|oh|well|but|and|sorry|argh|ugh|wait) )*(?:no|nope|nah) (?:no|that|this|it|you|i|not|way|sorry|the|change|\d+)
not (?!sure)(?:\w+ ?){1,2}$|there(?:'s| is| are) (?:a|an|still|some|no|two|nothing) (?:\w+ )?(?:typos?|mistakes?|errors?|bugs?|ending|difference|punchline)
^(?:<bad>)|^(?:so|very|really|pretty|quite|just|all) (?:<bad>)
(?:<thing>|<form>|they|you|which|name|number|query|link|hotel|app|script|\d+)(?:'s| is| was|'re| are| were| seems?| looks?| sounds?| got| has)? (?:\w+ ){0,2}?(?:<bad>)
(?:isn't|is not|wasn't|was not|aren't|are not|not|never|hardly|far from) (?:quite |really |at all |even |exactly |entirely |very |so |the ){0,2}(?:right|correct|true|it|what|how|helpful|good|great|useful|clear|enough|like (?:that|this|it)|working|readable|accurate|happy|satisfied|the (?:one|answer|point|question|problem|capital|best)|my|all of|sorted|open|mine)
(?:that's|this is|that is) (?:not|wrong|only|for)
(?:that's|it's|this is|that is|she is|he is|i need|i use|i want) (?:\w+ ){1,3}not (?:\w+ ?){1,3}$
(?:can't|cannot|can not|won't) (?:be (?:right|true|correct)|use|hand|read|submit|send|follow|open|run|accept)
i (?:really |just |simply |still )?(?:don't|do not|didn't|did not|can't|cannot) (?:like|want|need|ask|understand|get|follow|see|mean|think|eat|have|believe)
i (?:asked|said|told you|meant|wanted|requested|specified|expected|was asking|was hoping|was looking|already|have already|have no|only have|'m alone|hate|need (?!to|help|a|an|another|some))
i(?:'ve| have) already|as i said|i'm allergic|we don't
you (?:still |just |also |again )?(?:forgot|missed|ignored|misunderstood|misread|skipped|left out|left|mixed|confused|didn't|did not|haven't|keep|still|made|got|broke|hallucinated|invented|lost|dropped|repeated|failed|were supposed|should have|translated|changed|removed|are repeating|only|use)
you(?:'re| are) (?:looking at the wrong|repeating|wrong|mistaken|missing|not|kidding)|are you kidding|did you even|why did you
(?:<thing>|you|code|test|article|app|page|link|none of \w+|still|it still|that still) (?:doesn't|does not|don't|didn't|did not|won't|never|fails|isn't|aren't) (?:\w+)
(?:doesn't|does not|didn't|did not|don't|won't|never) (?:work|help|compile|run|build|terminate|rhyme|load|match|fit|say|answer|stop|parse|make sense)
(?:<thing>|code|test\w*|tests|build|function|page|server|app|script|now it|still|i get|it) (?:\w+ )?(?:<fails>)
(?:gives|give|gave) me (?:the wrong|an error|the worst|nothing)
still (?:the same|broken|wrong|failing|not|getting|crashes|missing|loops|there|drops|bold|a list|uses?|shows?|says?|has|doesn't|no|use)
(?:error|problem|bug|issue) (?:is )?still|no change|same (?:error|problem|result|mistake|issue|thing|answer)|no luck|no difference
(?:i|we|now i|now we) (?:still )?(?:get|got|see|am getting|'m getting) (?:an? |the |this |that )?(?:\w+ )?(?:error|exception|traceback|failure|crash|warning)
too (?:<quality>|much|many|little|few|\w+ (?:for|to))|(?:way|far|much) (?:too|over)|not (?:very |really )?(?:<quality>)(?: enough)?
hate (?:it|this|that|them|the|how)|can't stand|disappointed|frustrating|annoying|fed up|ridiculous|waste of time|misses the point|makes no sense|thanks for nothing|none of (?:this|these|that|it|them)
(?:missing|lacks?) (?:the|a|an|one|some|half|my|any)|is (?:still )?missing|are missing
(?:<fails>) (?:for|on|with|when|at|if)|^(?:\w*error|exception|traceback|unknown|syntax\w*|unhandled)\b
^(?:actually|wait|hang on|hold on|stop|oops)\b
wrong (?:\w+)$|does not exist|doesn't exist|no such|syntax error|\w+error
the (?:error|problem|bug|issue) (?:is|was|remains|persists)
"""

REDO_FORMS = r"""
why (?:is|are|does|did|do|has|have|was|isn't|doesn't|didn't) (?:it|this|that|there|you|everything|the|your)|^where(?:'s| is| are) (?:the|my)|(?:didn't|haven't|don't|can't|couldn't) you|^(?:isn't|aren't|wasn't|weren't) (?:there|it|this|that|they)|what happened to
(?:try|do|go|write|run|explain|answer|check|start|read|look|think|count|calculate|compute|solve|say|tell|give|send|show) (?:it |this |that |them |me |the \w+ |at it |over |at that |all ){0,3}(?:again|once more|one more time|over|anew)
^(?:please )?(?:again|once more|one more time)|again please|again but|not again
redo|retry|rewrite|re-write|rephrase|reword|recalculate|regenerate|recheck|re-check|reformat|revise|double[- ]check|start over|start from scratch|revert|undo|go back|roll (?:it|that) back|something else
(?:another|a different) (?:way|version|try|attempt|answer|wording|approach|style)|a different one|try (?:something|a different|another|harder)|something different
in (?:other|different|simpler|fewer|your own) words|in (?:simple|plain|other) (?:words|english|terms|text)|(?:put|say) (?:<thing>) (?:differently|another way)|eli5|like i'm five
(?:correct|fix|repair|debug) (?:<thing>|the \w+|your \w+)
"""

CHANGE_FORMS = r"""
(?:make|keep|get|have|turn|put|write|give|phrase|format|present|explain|render|trim|break|say) (?:me )?(?:<thing>)(?: \w+){0,2}? (?:<comparative>|<quality>)
(?:make|write|phrase|format|present|render|turn|rewrite) (?:me )?(?:<thing>)(?: \w+){0,2}? (?:in|as|into|without|with|like)
(?:answer|write|reply|respond|speak|say (?:it|this|that)) in \w+$|only$
(?:<edit>) (?:<thing>|<form>|(?:the|all|any|those|these|some|a|an|your|my|')[ ]?.*)
^(?:(?:and|but|please|pls|just|maybe|now|also|hm+|can you|could you|would you|a bit|a little|a lot|much|slightly|even|in|be|make it|that's|sound|bit|ok|okay|i want it|i need it) )*(?:<comparative>)(?: (?:please|pls|and .*|tone|text|words|answers?|version|next time|style|sentences)| ?$)
^(?:just |in )?(?:<form>) (?:please|pls)
(?:make|be|sound|get|keep|have|need|want|like|want it|be made) (?:<thing> )?(?:a (?:bit|little|lot) |much |somewhat |something |even )?(?:<comparative>)
^(?:(?:please|just|and|but|always|try to|can you|could you) )*be (?:a (?:bit|little) |more |less )?(?:<quality>|brief)
(?:no|without|fewer|less|with no|don't|do not|stop|drop|quit|never|leave out|hate|not in|not as|all) (?:(?:use|using|write|writing|want|need|like|add|put|the|any|all|that|those|these|this|so many|a|in|it|me|with|much|please|do|your) ){0,4}(?:\w+ )?(?:<form>)
(?:use|using|put|write|format|show|present|list|set|prefer|only|just|need|want|give|in|as|add|have|box|bold|like)(?: (?:me|it|them|this|that|the|a|an|your|my|all|some|everything|answer|final|result|steps|reply|words|in|as|to|with|only|just|one|use|proper|simple|short|single|on)){0,6} (?:<form>)
^(?:(?:please|pls|and|but|could you|can you) )*(?:box|bold|shorten|simplify|condense|summari[sz]e) (?:<thing>|the|your)
(?:don't|do not|stop|quit|refrain from|no need to) (?:\w+ )?(?:use|using|write|writing|add|adding|give|giving|say|saying|repeat\w*|explain\w*|apologi[sz]\w+|include|including|put|putting|lectur\w+|guess\w*|start\w*|mention\w*|assum\w+|touch\w*|invent\w*)
^(?:(?:please|can you|could you|would you|just|and|try to|maybe) )*(?:make|use|add|take|include|mention|change|remove|keep|try|replace|leave|start|end|output|address|stick|stop|fix) (?:<thing>|the \w+|a (?:bit|little|different|line|word|sentence|paragraph)|some|more|less|only|\w+er|to be|out|something)
half as|as <quality>|would be (?:better|nicer|good)|i expected|i'd expected
instead|rather (?:than|not)|i'd (?:rather|prefer)|i (?:would |want to |'d )?prefer|i would (?:rather|like it|want it|prefer)|i'd like (?:it|this|that|the)
(?:only|just) (?:(?:give|show|tell|want|need|say|the|me|a|one|single|plain|final|file) )+(?:number|answer|result|code|word|facts?|name|names|essentials|gist)|only the \w+
(?:it|this|that|there|the \w+|answer|reply) (?:should|must|has to|have to|needs? to|ought to|was supposed)
(?:more|in more|some more|fewer|less) (?:details?|detail|depth|explanation|context|examples?|steps|words|emotion|warmth|praise|jargon|text)
(?:one|two|three|four|five|\d+) (?:sentences?|lines?|words?|paragraphs?) (?:is|are|max|please|only|at most|would)|be brief|get to the point|keep to|stick to|not so \w+
give me some praise|say something \w+ first|more encouraging|for (?:two|\d+|one|a) \w+ not
(?:please |can you |could you |but )(?:also )?(?:add|mention|include|insert|append|translate it|address) .*
"""

CLARIFY_FORMS = r"""
are you (?:really |quite |absolutely )?(?:sure|certain)
is (?:that|this|it) (?:really )?(?:right|correct|true)
^(?:is|was|are|does) (?:it|this|that|these|those) .*\?|what do you mean|what does ... mean|who are you|how come|really$
i(?:'m| am) not (?:\w+ )?sure|^ok then$|needs? to (?:decide|think|check|ask)|let me (?:read|see|check|think)|^(?:ok|okay|interesting|noted|i see|alright|fine|sure)$|one moment|test it later
"""
"""Holds back judgement: neither accepted nor refused yet."""

DENIAL_FORMS = r"""
\w+n't|not|no|nobody|nothing|none|never|neither|nowhere
"""
"""In a statement without thanks, after a reply: a correction."""

ASK_FORMS = r"""
^(?:(?:and|so|ok|okay|now|then|please|pls|also|hi|hello|hey|next|first) )*(?:what|how|why|when|where|who|which|whose|can|could|would|will|do|does|did|is|are|should|may|write|explain|give|tell|show|find|list|compute|solve|calculate|create|make|draw|draft|compose|generate|build|implement|describe|compare|suggest|recommend|help|plan|book|search|look|open|read|run|check|add|send|set|remind|convert|translate|summari[sz]e|define|name|count|remove|i need|my homework)
"""

SET_PHRASE_FORMS = r"""
perfect (?:storms?|tense|squares?|numbers?|pitch|competition)|(?:present|past|future) perfect
great (?:britain|depression|lakes|plains|wall|barrier|deal|many)|good (?:friday|morning|afternoon|evening|deal of)
right (?:angles?|triangles?|wing|click|hand)
"""
"""Holds a word of praise, and none."""

QUOTED_FORMS = r"""
(?:tool|command|script|program|terminal|shell|console|log|output|screen|page|website|server|api|compiler|linter|tests?|build|job|sub-?agent|agent|bot)s? (?:\w+ ){0,2}?(?:said|says?|printed|prints?|reported|reports?|returned|returns?|answered|replied|showed|shows?|wrote)[:,]? ?(?P<words>"[^"\n]{0,300}"|'(?:[^'\n]|'(?=\w)){0,300}'|(?<=:)[^\n.;!?]{1,300}|(?<=: )[^\n.;!?]{1,300})
"""
"""What a person reports of a program's words; the program is no person."""

TOOL_ERROR_FORMS = r"""
[\w.]*(?:error|exception|panic|fatal|failure)(?:\[\w+\])?(?: \[[^\]]*\])? ?[:(]
(?:failed|unable|cannot|can't|could not|couldn't|invalid|unknown|unrecogni[sz]ed|unexpected|missing|usage:|no such|permission denied|access denied|denied|string to replace not found|segmentation fault|npm err)
[\w./-]+: [^\n]*(?:not found|no such file|permission denied|cannot|can't|invalid|not recognized|is a directory|not a directory|unrecognized|syntax error|does not exist|[\w.]+error:|error: )
\S+: error:|make: \*\*\*|no matches found for pattern [^\n]* invalid|file (?:not found|does not exist)|enoent|eacces|eisdir|[^\n]{0,80}core dumped
(?:http |status:? |code:? )?4(?!29)\d\d (?:bad|not|forbidden|unauthori[sz]ed|client|method|conflict|gone|unprocessable)
"""
"""How a result that is an error message and nothing else begins."""

TOOL_OUTAGE_FORMS = r"""
(?:429|50[0234])\b.{0,40}\b(?:too many|service|unavailable|gateway|server|internal|overloaded)|rate[- ]limit\w*|too many requests|service unavailable|bad gateway|gateway time-?out|internal server error|quota exceeded
connection (?:refused|reset|aborted|timed out|error)|econn\w+|etimedout|network (?:is )?unreachable|name resolution|name or service not known|no space left on device|out of memory
(?:sandbox|backend|tool server|browser) .{0,30}(?:crashed|down|unavailable|died)|(?:cancelled|canceled|interrupted|rejected) by (?:the )?user
"""
"""Trouble of the environment's own, which no action of the assistant caused: says nothing about it."""


def compile_forms(forms: str) -> re.Pattern[str]:
    """One pattern that finds any of the forms."""
    pattern = "|".join(f"(?:{form})" for form in forms.strip().splitlines())
    pattern = pattern.replace(" ... ", r" (?:\S+ ){0,3}")
    for name, words in VOCABULARY.items():
        pattern = pattern.replace(f"<{name}>", f"(?:{words})")
    return re.compile(rf"(?<!\w)(?:{pattern})(?!\w)")


CONTENT = compile_forms(CONTENT_FORMS)
THANKS = compile_forms(THANKS_FORMS)
PRAISE = compile_forms(PRAISE_FORMS)
MOVING_ON = compile_forms(MOVING_ON_FORMS)
REJECTION = compile_forms(REJECTION_FORMS)
REDO = compile_forms(REDO_FORMS)
CHANGE = compile_forms(CHANGE_FORMS)
CLARIFY = compile_forms(CLARIFY_FORMS)
DENIAL = compile_forms(DENIAL_FORMS)
ASK = compile_forms(ASK_FORMS)
TOOL_ERROR = re.compile("|".join(f"(?:{form})" for form in TOOL_ERROR_FORMS.strip().splitlines()))
SET_PHRASE = compile_forms(SET_PHRASE_FORMS)
QUOTED = compile_forms(QUOTED_FORMS)
TOOL_OUTAGE = compile_forms(TOOL_OUTAGE_FORMS)

# Wishes about how a reply is put: what a complaint asks for, and the instruction that would have met it.

_AVOID = (
    r"(?:no|not|nor|without|without the|without any|don't|do not|stop|quit|drop|remove|avoid|skip|never|leave out|"
    r"get rid of|lose|fewer|hate|don't like|instead of)"
)
WISH_FORMS = {
    "plain": rf"""
(?:in|just|only|use|as|to|plain) plain (?:text|words|prose|sentences|style)|plainly|plain text|plainer
{_AVOID} (?:\w+ ){{0,3}}(?:formatting|markdown|decoration|latex)
{_AVOID} (?:\w+ ){{0,3}}(?:bold|bullets?|lists?|box(?:es)?|boxed|headings?|tables?)(?: \w+){{0,3}} (?:or|and|nor|no) (?:\w+ ){{0,2}}(?:bold|bullets?|lists?|box(?:es)?|boxed|headings?|tables?)
""",
    "no bold": rf"{_AVOID} (?:\w+ ){{0,3}}(?:bold|asterisks|stars)",
    "no list": rf"{_AVOID} (?:\w+ ){{0,3}}(?:lists?|bullets?|bullet points?)",
    "no box": rf"{_AVOID} (?:\w+ ){{0,3}}(?:box|boxes|boxed)",
    "no headings": rf"{_AVOID} (?:\w+ ){{0,3}}(?:headings?|headlines?|titles?)",
    "no tables": rf"{_AVOID} (?:\w+ ){{0,3}}tables?",
    "no emojis": rf"{_AVOID} (?:\w+ ){{0,3}}emojis?",
    "no jargon": rf"{_AVOID} (?:\w+ ){{0,3}}(?:jargon|technical \w+)|too technical|less technical|in plain english",
    "bold": r"(?:in|use|make|with|want|put) (?:(?:the|it|them|your|final|answer|result|words?|in|is|a) ){0,5}bold",
    "list": r"(?:as|use|in|with|want|need|make) (?:(?:it|me|steps|the|a|proper|as|into) ){0,4}(?:numbered |bulleted |bullet )?(?:lists?|bullet points?|bullets)",
    "box": r"(?:box|draw a box around) (?:the|your|that) (?:\w+ )?(?:answer|result|number)|(?:use|in|with|want) (?:a |the )?box(?:ed)?(?: answer)?",
    "short": r"shorter|briefer|be brief|more concise|be concise|keep it short|too (?:long|wordy|verbose)|shorten|condense|get to the point|less (?:text|words)|fewer words|(?:only|just) (?:(?:give|tell|want|need|me) )*the (?:number|answer|result|word)",
    "detailed": r"(?:more|in more|some more|with more) (?:details?|depth|explanation)|longer|more detailed|too (?:short|brief|terse)|elaborate|explain (?:it|this|that|more|your)|show (?:me )?your (?:steps|work\w*)",
    "simple": r"simpler|in simple (?:words|terms)|too (?:complicated|complex)|eli5|like i'm five|simplify",
    "friendly": r"(?:more |be |be more |sound )friendl(?:y|ier)|friendlier|friendly tone|nicer|warmer|too (?:cold|stiff|harsh|robotic)|more kind|kinder",
    "praising": r"encourag\w+|some praise|praise me|compliment",
    "formal": r"more formal|too (?:casual|informal|colloquial)|more polite|politer|more professional",
    "casual": r"less formal|too (?:formal|stiff)|more casual",
}
"""Name of a wish → forms that express it."""

WISH_INSTRUCTIONS = {
    "plain": "Write it in plain text, without any formatting.",
    "no bold": "Use plain text, without bold.",
    "no list": "Use plain text, without a list.",
    "no box": "Use plain text, without a box.",
    "no headings": "Leave out headings.",
    "no tables": "Leave out tables.",
    "no emojis": "Leave out emojis.",
    "no jargon": "Use everyday words, without jargon.",
    "bold": "Write the answer in bold.",
    "list": "Write it as a numbered list.",
    "box": "Box the answer.",
    "short": "Keep it short.",
    "detailed": "Explain it in more detail.",
    "simple": "Explain it in simple words.",
    "friendly": "Use a friendly tone.",
    "praising": "Say something encouraging first.",
    "formal": "Use a more formal tone.",
    "casual": "Use a more casual tone.",
}
"""What is said to a teacher, in this order."""

WISH_COVERS = {
    "plain": ("no bold", "no list", "no box", "no headings", "no tables", "bold", "list", "box"),
    "no bold": ("bold",),
    "no list": ("list",),
    "no box": ("box",),
    "simple": ("no jargon",),
}
"""A wish, and those that need not be said beside it, or whose forms stand inside its own."""

WISHES = {name: compile_forms(forms) for name, forms in WISH_FORMS.items()}
