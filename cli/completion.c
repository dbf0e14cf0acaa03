/* completion.c: attn completion: the subcommands and options of the tables, as scripts that bash, zsh and fish complete from.
 * SPDX-License-Identifier: MIT
 */
#include "cli.h"

/* Text inside single quotes of a shell; `also` are characters that get a backslash before them. */
static void quote(const char *text, const char *quote_as, const char *also)
{
    for (; *text; text++) {
        if (*text == '\'')
            fputs(quote_as, stdout);
        else
            printf(strchr(also, *text) ? "\\%c" : "%c", *text);
    }
}

static void print_words(const char *const *words)
{
    for (int i = 0; words[i]; i++) printf(i ? " %s" : "%s", words[i]);
}

/* ---- bash ------------------------------------------------------------------------------------------------------------------------- */

static void bash_option(const char *subcommand, const cli_option_info *o)
{
    if (!o->argument || o->file) return;
    printf("    %s:--%s", subcommand, o->name);
    if (o->letter) printf(" | %s:-%c", subcommand, o->letter);
    printf(") ");
    if (o->words) printf("COMPREPLY=($(compgen -W '"), print_words(o->words), printf("' -- \"$cur\")); ");
    printf("return ;;\n");
}

static void bash(void)
{
    const char     *name, *summary, *words;
    unsigned        bit;
    cli_option_info o;
    printf("# Completions of attn for bash, made by: attn completion bash\n"
           "_attn() {\n"
           "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} sub=${COMP_WORDS[1]} names= IFS=$' \\t\\n'\n"
           "    COMPREPLY=()\n"
           "    case $COMP_CWORD:$sub in\n"
           "    1:*) names='help --help --version' ;;\n"
           "    2:help) names='masks' ;;\n"
           "    esac\n"
           "    if [ \"$names\" ]; then\n"
           "        COMPREPLY=($(compgen -W \"$names");
    for (int s = 0; subcommand_info(s, &bit, &name, &summary, &words); s++) printf(" %s", name);
    printf("\" -- \"$cur\"))\n"
           "        return\n"
           "    fi\n"
           "    case $sub:$prev in\n");
    for (int s = 0; subcommand_info(s, &bit, &name, &summary, &words); s++)
        for (int i = 0; options_info(bit, i, &o); i++) bash_option(name, &o);
    printf("    esac\n"
           "    case $cur:$COMP_CWORD:$sub in\n");
    for (int s = 0; subcommand_info(s, &bit, &name, &summary, &words); s++) {
        printf("    -*:%s) names='", name);
        for (int i = 0; options_info(bit, i, &o); i++) printf(i ? " --%s" : "--%s", o.name);
        printf("' ;;\n");
        if (words) printf("    *:2:%s) names='%s' ;;\n", name, words);
    }
    printf("    esac\n"
           "    COMPREPLY=($(compgen -W \"$names\" -- \"$cur\"))\n"
           "    IFS=$'\\n'\n" /* a name may hold spaces */
           "    [ \"$names\" ] || COMPREPLY=($(compgen -f -- \"$cur\"))\n"
           "}\n"
           "complete -o filenames -F _attn attn\n");
}

/* ---- zsh -------------------------------------------------------------------------------------------------------------------------- */

static void zsh_option(const cli_option_info *o)
{
    for (int shown = 0; shown < (o->letter ? 2 : 1); shown++) {
        printf(" \\\n            '");
        if (shown)
            printf("-%c", o->letter);
        else
            printf(o->argument ? "--%s=" : "--%s", o->name);
        printf("[");
        quote(o->help, "'\\''", "[]:");
        printf("]");
        if (o->argument) printf(":%s:", o->argument);
        if (o->words) printf("("), print_words(o->words), printf(")");
        if (o->file) printf("_files");
        printf("'");
    }
}

static void zsh(void)
{
    const char     *name, *summary, *words;
    unsigned        bit;
    cli_option_info o;
    printf("#compdef attn\n"
           "# Completions of attn for zsh, made by: attn completion zsh\n"
           "_attn() {\n"
           "    local -a subcommands=('help:help on a subcommand or on masks'");
    for (int s = 0; subcommand_info(s, &bit, &name, &summary, &words); s++) {
        printf(" \\\n        '%s:", name);
        quote(summary, "'\\''", ":");
        printf("'");
    }
    printf(")\n"
           "    (( CURRENT == 2 )) || subcommands+=('masks:who sees whom')\n"
           "    if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then\n"
           "        _describe subcommand subcommands\n"
           "        return\n"
           "    fi\n"
           "    shift words\n"
           "    (( CURRENT-- ))\n"
           "    case $words[1] in\n");
    for (int s = 0; subcommand_info(s, &bit, &name, &summary, &words); s++) {
        printf("    %s)\n        _arguments", name);
        for (int i = 0; options_info(bit, i, &o); i++) zsh_option(&o);
        if (words)
            printf(" \\\n            '1:word:(%s)' '*:file:_files' ;;\n", words);
        else
            printf(" \\\n            '*:file:_files' ;;\n");
    }
    printf("    esac\n"
           "}\n"
           "_attn \"$@\"\n");
}

/* ---- fish ------------------------------------------------------------------------------------------------------------------------- */

static void fish_option(const char *subcommand, const cli_option_info *o)
{
    printf("complete -c attn -n '__fish_seen_subcommand_from %s' -l %s", subcommand, o->name);
    if (o->letter) printf(" -s %c", o->letter);
    if (o->argument) printf(o->file ? " -r -F" : " -x");
    if (o->words) printf(" -a '"), print_words(o->words), printf("'");
    printf(" -d '");
    quote(o->help, "\\'", "\\");
    printf("'\n");
}

static void fish(void)
{
    const char     *name, *summary, *words;
    unsigned        bit;
    cli_option_info o;
    printf("# Completions of attn for fish, made by: attn completion fish\n"
           "complete -c attn -n __fish_use_subcommand -x -a help -d 'help on a subcommand or on masks'\n"
           "complete -c attn -n '__fish_seen_subcommand_from help' -x -a masks -d 'who sees whom'\n");
    for (int s = 0; subcommand_info(s, &bit, &name, &summary, &words); s++) {
        for (int help = 0; help < 2; help++) {
            printf("complete -c attn -n %s -x -a %s -d '", help ? "'__fish_seen_subcommand_from help'" : "__fish_use_subcommand", name);
            quote(summary, "\\'", "\\");
            printf("'\n");
        }
        if (words) printf("complete -c attn -n '__fish_seen_subcommand_from %s' -a '%s'\n", name, words);
        for (int i = 0; options_info(bit, i, &o); i++) fish_option(name, &o);
    }
}

int completion_main(const cli_options *o)
{
    static const struct {
        const char *name;
        void (*print)(void);
    } shell[] = {{"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    for (int i = 0; i < 3; i++)
        if (strcmp(o->operand[0], shell[i].name) == 0) return shell[i].print(), CLI_OK;
    return out_fail(CLI_USAGE, "%s: one of bash, zsh, fish", o->operand[0]);
}
