/* main.c: the command attn: its subcommands, help, version.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

typedef struct subcommand {
    const char *name;
    unsigned    bit;
    int         operands; /* exactly so many; -1: the subcommand counts them */
    int (*main)(const cli_options *o);
    const char *usage, *summary, *examples;
} subcommand;

static const subcommand table[] = {
    {"run", CLI_RUN, 3, run_main, "Q K V [-o OUT] [options]", "attention of queries Q over keys K and values V from files",
     "  attn run q.npy k.npy v.npy -o out.npy\n"
     "  attn run q.npy k.npy v.npy -o out.npy --causal --align bottom-right\n"
     "  attn run batch.npz:q batch.npz:k batch.npz:v -o out.npy --key-count 5,7 --lse lse.npy\n"
     "  attn run q.npy k.npy v.npy -o out.npy --layout bshd --window 128,0 --hide padding.npy --dtype f32\n"
     "  attn run q.csv k.csv v.csv --weights w.csv\n"},
    {"layer", CLI_LAYER, 1, layer_main, "FILE --layer N --input X [-o OUT] [options]", "one multi-head layer of a .safetensors checkpoint",
     "  attn layer model.safetensors --layer 0 --input hidden.npy -o out.npy\n"
     "  attn layer gpt2.safetensors --layer 3 --input hidden.npy -o out.npy --causal --weights w.npy\n"
     "  attn layer torch.safetensors --prefix decoder.cross. --heads 8 --input x.npy --kv-input y.npy -o out.npy\n"},
    {"explain", CLI_EXPLAIN, -1, explain_main, "[Q K V | FILE --layer N --input X | --q M --k M --v M] [options]",
     "one row, every number: scores, who is hidden and why, weights, output",
     "  attn explain --q \"1,0\" --k \"1,0; 0,1\" --v \"10,0; 0,10\"\n"
     "  attn explain q.npy k.npy v.npy --entry 0 --head 1 --row 5 --causal --why 2\n"
     "  attn explain model.safetensors --layer 5 --input model.safetensors:hidden_states --head 7 --row 10 --top 5 "
     "--tokens model.safetensors\n"},
    {"check", CLI_COMPARE, 3, check_main, "Q K V --against OUT [options]", "is somebody else's result right, and if not, why not",
     "  attn check q.npy k.npy v.npy --against theirs.npy --causal\n"
     "  attn check q.npy k.npy v.npy --against theirs.npy --key-count 5,7 --tolerance 1e-3,1e-3 --json\n"
     "  attn check q.npy k.npy v.npy --against-lse lse.npy --against-weights w.npy\n"},
    {"cost", CLI_COST, 0, cost_main, "--tokens N,.. [options]", "what a length costs: dense scores, bytes, operations",
     "  attn cost --tokens 100,200\n"
     "  attn cost --tokens 8192,131072 --heads 32 --dim 128 --causal --window 4096,0\n"
     "  attn cost --plan --tokens 4096 --queries 1 --heads 32 --kv-heads 8 --dim 128\n"},
    {"show", CLI_SHOW, -1, show_main, "Q K V | FILE --layer N,.. --input X,.. | --weights W [W..] [options]",
     "heat maps of weights: in the terminal, PNG, SVG, a page to click through",
     "  attn show q.npy k.npy v.npy --causal --align bottom-right --head 3\n"
     "  attn show model.safetensors --layer 5 --input model.safetensors:hidden_states --tokens model.safetensors --html heads.html\n"
     "  attn show q.npy k.npy v.npy --log --png heads.png --svg heads.svg\n"
     "  attn show --weights w.csv\n"},
    {"mask", CLI_MASK, -1, mask_main, "show|lint|convert [FILE] [options]", "who sees whom: drawn, looked through, in other systems' forms",
     "  attn mask show --queries 8 --causal --window 3,0\n"
     "  attn mask show --queries 4 --keys 7 --causal --align bottom-right --png mask.png\n"
     "  attn mask lint --hide padding.npy --key-count 5,7 --queries 3\n"
     "  attn mask convert --queries 128 --causal --to mha -o attn_mask.npy\n"
     "  attn mask convert attn_mask.npy --from mha --to sdpa -o keep.npy\n"},
    {"info", CLI_INFO, 0, info_main, "", "version, CPU, instruction sets, threads",
     "  attn info\n"
     "  attn info --json\n"},
    {"lesson", CLI_LESSON, -1, lesson_main, "[NAME] [--answer]", "short lessons that run, each with a question",
     "  attn lesson\n"
     "  attn lesson row\n"
     "  attn lesson empty --answer\n"},
    {"completion", CLI_COMPLETION, 1, completion_main, "bash|zsh|fish", "completions of options, for a shell to read",
     "  attn completion bash > ~/.local/share/bash-completion/completions/attn\n"
     "  attn completion zsh > ~/.zsh/functions/_attn\n"
     "  attn completion fish > ~/.config/fish/completions/attn.fish\n"},
    {"demo", CLI_DEMO, 0, demo_main, "[options]", "a real trained layer at work, checked, with a picture of its heads",
     "  attn demo\n"
     "  attn demo --head 3 --png heads.png\n"},
};

enum { SUBCOMMANDS = sizeof table / sizeof *table };

static void help(FILE *to)
{
    fprintf(to, "attn: exact attention\n\nExamples:\n"
                "  attn demo\n"
                "  attn explain --q \"1,0\" --k \"1,0; 0,1\" --v \"10,0; 0,10\"\n"
                "  attn run q.npy k.npy v.npy -o out.npy --causal\n"
                "  attn check q.npy k.npy v.npy --against theirs.npy\n"
                "  attn cost --tokens 100,200\n\n"
                "Usage: attn SUBCOMMAND ...\n\n");
    for (int i = 0; i < SUBCOMMANDS; i++) fprintf(to, "  %-10s %s\n", table[i].name, table[i].summary);
    fprintf(to,
            "\nattn help SUBCOMMAND explains one, attn help masks who sees whom; attn --version says the version.\n"
            "Files: .npy, .npz:NAME, .safetensors:NAME, .csv for small matrices. Results go to stdout or to a file, messages to stderr.\n"
            "Exit: 0 ok, 1 a check failed, 2 usage, 3 input unreadable, 4 shapes or types do not fit, 5 not supported, 6 output cannot be\n"
            "written or no memory, 70 internal. The manual is attn(1).\n");
}

static void help_of(const subcommand *s)
{
    printf("attn %s: %s\n\nExamples:\n%s\nUsage: attn %s%s%s\n\n", s->name, s->summary, s->examples, s->name, *s->usage ? " " : "",
           s->usage);
    options_print(s->bit, stdout);
    if (s->bit == CLI_MASK) mask_forms_print(stdout);
}

int subcommand_info(int index, unsigned *bit, const char **name, const char **summary, const char **words)
{
    if (index >= SUBCOMMANDS) return 0;
    const subcommand *s = &table[index];
    *bit = s->bit, *name = s->name, *summary = s->summary;
    *words = s->bit == CLI_MASK         ? "show lint convert"
             : s->bit == CLI_COMPLETION ? "bash zsh fish"
             : s->bit == CLI_LESSON     ? lesson_words()
                                        : NULL;
    return 1;
}

static void help_masks(void)
{
    fputs(
        "attn help masks: who sees whom\n\n"
        "A query sees a key if all that is given allows it. Weights are a softmax over the keys seen; a query that sees none gives "
        "zeros.\n\n"
        "  --causal                   no later key: place of the key <= place of the query\n"
        "  --window L,R               only L keys before its own place and R after; -1 = no bound\n"
        "  --key-count, --key-start   keys in use, padding right and left; --query-count: queries in use\n"
        "  --allow M                  boolean, true = may be seen (PyTorch's SDPA, ONNX); --hide M: true = hidden (nn.MultiheadAttention)\n"
        "  --bias B                   floats added to the scores; -inf hides, any finite number does not\n\n"
        "Masks are files or written out, \"1,1,0; 1,1,1\"; axes from the right: (key), (query, key), (head, query, key), (batch, 1, 1, "
        "key).\n\n"
        "Where queries stand matters for causal, window and ALiBi where there are not as many queries as keys; nothing is guessed:\n\n"
        "  3 queries, 5 keys       --align top-left     --align bottom-right     --query-offset 1\n"
        "                          # . . . .            # # # . .                # # . . .\n"
        "                          # # . . .            # # # # .                # # # . .\n"
        "                          # # # . .            # # # # #                # # # # .\n\n"
        "attn mask show draws any combination, attn mask lint looks for what is probably wrong, attn explain gives the reason for each "
        "key,\n"
        "attn check says which mistake a result shows. The manual is attn-masks(7).\n",
        stdout);
}

static const subcommand *find(const char *name)
{
    for (int i = 0; i < SUBCOMMANDS; i++)
        if (strcmp(table[i].name, name) == 0) return &table[i];
    return NULL;
}

static int no_subcommand(const char *name)
{
    out_fail(CLI_USAGE, "%s is no subcommand", name);
    char   names[256] = "";
    size_t used = 0;
    for (int i = 0; i < SUBCOMMANDS; i++) used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", table[i].name);
    out_fix("one of %s; attn --help says what each does", names);
    return CLI_USAGE;
}

static int run(const subcommand *s, int argc, char **argv)
{
    cli_options o;
    memset(&o, 0, sizeof o);
    out_name(s->name, 0);
    int code = options_parse(&o, s->bit, argc, argv);
    out_name(s->name, o.quiet);
    if (!code && o.help)
        help_of(s);
    else if (!code && s->operands >= 0 && o.operands != s->operands) {
        code = out_fail(CLI_USAGE, "takes %d operand%s, %d given", s->operands, s->operands == 1 ? "" : "s", o.operands);
        out_fix("usage: attn %s%s%s", s->name, *s->usage ? " " : "", s->usage);
    } else if (!code)
        code = s->main(&o);
    options_free(&o);
    return code;
}

int subcommand_run(int argc, char **argv)
{
    const subcommand *s = argc ? find(argv[0]) : NULL;
    return s ? run(s, argc, argv) : no_subcommand(argc ? argv[0] : "");
}

int main(int argc, char **argv)
{
    const char       *word = argc > 1 ? argv[1] : "";
    const subcommand *s = find(word);
    int               code = CLI_OK;
    if (s)
        code = run(s, argc - 1, argv + 1);
    else if (argc < 2)
        help(stderr), code = CLI_USAGE;
    else if (strcmp(word, "--version") == 0)
        printf("attn %s\n", attn_version_text());
    else if (strcmp(word, "--help") && strcmp(word, "-h") && strcmp(word, "help"))
        code = no_subcommand(word);
    else if (argc == 2)
        help(stdout);
    else if (argc > 3)
        code = out_fail(CLI_USAGE, "help takes one word, a subcommand or masks; %d given", argc - 2);
    else if ((s = find(argv[2])))
        help_of(s);
    else if (strcmp(argv[2], "masks") == 0)
        help_masks();
    else
        code = no_subcommand(argv[2]);
    return out_finish(code);
}
