# The part of the worker that is written in R. The worker evaluates this file in a private environment. The
# functions in `exports` are attached to the search path as `windlass`.

native <- function(name, ...) .Call(name, ..., PACKAGE = "(embedding)")

# ---- errors -------------------------------------------------------------------------------------------------

# The calling handler for errors that no other handler has taken.
on_error <- function(e) {
    calls <- sys.calls()
    # The last frame is this handler. R puts `.handleSimpleError` before it for errors from C.
    count <- length(calls) - 1L
    if (count > 0L && identical(calls[[count]][[1L]], quote(.handleSimpleError))) count <- count - 1L
    message <- tryCatch(paste(conditionMessage(e), collapse = "\n"), error = function(e) "")
    call <- tryCatch(conditionCall(e), error = function(e) NULL)
    native("windlass_error", class(e)[[1L]], message, error_text(message, call, calls, count))
}

# The calling handler for interrupts that no other handler has taken.
on_interrupt <- function(e) native("windlass_interrupt")

error_text <- function(message, call, calls, count) {
    head <- if (is.null(call)) {
        paste0("Error: ", message)
    } else {
        where <- one_line(call)
        long <- nchar(where, "bytes") + nchar(sub("\n.*", "", message), "bytes") > 58L
        paste0("Error in ", where, " : ", if (long) "\n  ", message)
    }
    if (count < 1L) return(paste0(head, "\n"))
    shown <- if (count > 40L) c(1:20, (count - 19L):count) else seq_len(count)
    lines <- vapply(calls[shown], one_line, "")
    lines <- paste0(format(shown, justify = "right"), ": ", lines)
    if (count > 40L) lines <- c(lines[1:20], paste0("... ", count - 40L, " calls"), lines[21:40])
    paste0(paste(c(head, "Calls:", paste0("  ", lines)), collapse = "\n"), "\n")
}

one_line <- function(call) {
    text <- deparse(call, width.cutoff = 60L, nlines = 1L)[[1L]]
    if (nchar(text, "bytes") > 200L) paste0(substr(text, 1L, 197L), "...") else text
}

last_error_text <- function() {
    text <- geterrmessage()
    .Internal(seterrmessage(""))
    text
}

# The message of a syntax error, or NULL if the text can be parsed.
parse_error <- function(code) {
    tryCatch({
        parse(text = code, keep.source = FALSE, srcfile = srcfilecopy("<code>", code))
        NULL
    }, error = function(e) sub("^<code>:", "line ", conditionMessage(e)))
}

# A source file object, so that functions print as they were written.
source_of <- function(code) {
    srcfilecopy("<code>", strsplit(code, "\n", fixed = TRUE)[[1L]], Sys.time(), isFile = FALSE)
}

# ---- surroundings of a turn ---------------------------------------------------------------------------------

surroundings <- new.env()
surroundings$undo <- list()

# Sets the directory and the variables of a turn. Returns NULL, or why they cannot be set.
enter <- function(context) tryCatch({
    names <- as.character(unlist(context$names))
    if (length(names)) {
        before <- Sys.getenv(names, unset = NA_character_, names = TRUE)
        surroundings$undo <- c(list(function() restore_variables(names, before)), surroundings$undo)
        do.call(Sys.setenv, stats::setNames(as.list(as.character(unlist(context$values))), names))
    }
    if (!is.null(context$cwd)) {
        left <- getwd()
        if (!dir.exists(context$cwd)) stop("cannot enter the directory ", context$cwd)
        setwd(context$cwd)
        surroundings$undo <- c(list(function() setwd(left)), surroundings$undo)
    }
    NULL
}, error = function(e) conditionMessage(e))

restore_variables <- function(names, before) {
    unset <- is.na(before)
    Sys.unsetenv(names[unset])
    if (any(!unset)) do.call(Sys.setenv, as.list(before[!unset]))
}

# Puts everything back, except what is gone.
leave <- function() {
    undo <- surroundings$undo
    surroundings$undo <- list()
    for (step in undo) tryCatch(step(), error = function(e) NULL)
}

# ---- displays -----------------------------------------------------------------------------------------------

display_raw <- function(mime, data, id = NULL, update = FALSE) {
    if (is.character(data)) data <- charToRaw(enc2utf8(paste(data, collapse = "\n")))
    stopifnot(is.raw(data), is.character(mime), length(mime) == 1L)
    answer <- native("windlass_display", mime, data, if (!is.null(id)) as.character(id), isTRUE(update))
    if (!is.null(answer)) stop(answer, call. = FALSE)
    invisible(id)
}

display_html <- function(html, id = NULL, update = FALSE)
    display_raw("text/html", as.character(html), id, update)
display_markdown <- function(text, id = NULL, update = FALSE)
    display_raw("text/markdown", as.character(text), id, update)
display_text <- function(text, id = NULL, update = FALSE)
    display_raw("text/plain", as.character(text), id, update)
display_json <- function(value, id = NULL, update = FALSE)
    display_raw("application/json", to_json(value), id, update)

# `image` is a file, or the bytes of one.
display_image <- function(image, mime = NULL, id = NULL, update = FALSE) {
    if (is.character(image)) {
        if (is.null(mime)) mime <- image_mime(image)
        image <- readBin(image, "raw", file.size(image))
    }
    display_raw(if (is.null(mime)) "image/png" else mime, image, id, update)
}

image_mime <- function(path) {
    extension <- tolower(sub(".*\\.", "", path))
    known <- c(png = "image/png", jpg = "image/jpeg", jpeg = "image/jpeg", gif = "image/gif",
        svg = "image/svg+xml", webp = "image/webp", pdf = "application/pdf")
    if (extension %in% names(known)) known[[extension]] else "application/octet-stream"
}

html_escape <- function(text) {
    text <- gsub("&", "&amp;", text, fixed = TRUE)
    gsub(">", "&gt;", gsub("<", "&lt;", text, fixed = TRUE), fixed = TRUE)
}

View <- function(x, title = NULL) {
    if (is.null(title)) title <- paste(deparse(substitute(x), nlines = 1L), collapse = "")
    table <- utils::head(as.data.frame(x), 200L)
    cells <- vapply(table, function(column) html_escape(format(column)), character(nrow(table)))
    dim(cells) <- dim(table)
    row <- function(values, tag) paste0("<tr>", paste0("<", tag, ">", values, "</", tag, ">", collapse = ""), "</tr>")
    body <- if (nrow(table)) apply(cells, 1L, row, "td")
    caption <- paste0("<caption>", html_escape(title), "</caption>")
    display_html(c("<table>", caption, row(html_escape(names(table)), "th"), body, "</table>"))
}

# ---- plots --------------------------------------------------------------------------------------------------

# By the file of a device: the id of the page that was last shown, and the length of its display list.
plots <- new.env()
plots$pages <- list()
plots$count <- 0L
plots$device <- NULL

plot_size <- function() {
    size <- list(width = 8, height = 6, res = 96)
    utils::modifyList(size, as.list(getOption("windlass.plot")))
}

open_png <- function(file, size) {
    type <- if (capabilities("cairo")) "cairo" else getOption("bitmapType")
    grDevices::png(file, size$width, size$height, units = "in", res = size$res, type = type)
}

open_device <- function(width = NULL, height = NULL, ...) {
    size <- plot_size()
    if (is.numeric(width)) size$width <- width
    if (is.numeric(height)) size$height <- height
    file <- tempfile("windlass-plot-", fileext = "-%03d.png")
    open_png(file, size)
    grDevices::dev.control("enable")
    plots$pages[[file]] <- list(id = NULL, length = 0L, size = size)
    invisible()
}

# The file of a device that this worker has opened.
file_of <- function(device) {
    path <- attr(.Devices[[device]], "filepath")
    if (is.character(path) && path %in% names(plots$pages)) path
}

# Shows the page of the current device, if it has changed since it was last shown.
show_page <- function(file) {
    page <- plots$pages[[file]]
    snapshot <- grDevices::recordPlot()
    drawn <- length(snapshot[[1L]])
    if (drawn == 0L || drawn == page$length) return()
    current <- grDevices::dev.cur()
    copy <- tempfile("windlass-page-", fileext = ".png")
    on.exit(unlink(copy))
    open_png(copy, page$size)
    other <- grDevices::dev.cur()
    tryCatch(grDevices::replayPlot(snapshot), finally = {
        grDevices::dev.off(other)
        grDevices::dev.set(current)
    })
    show_file(file, copy)
    plots$pages[[file]]$length <- drawn
}

show_file <- function(file, copy) {
    bytes <- readBin(copy, "raw", file.size(copy))
    id <- plots$pages[[file]]$id
    update <- !is.null(id)
    if (update && identical(bytes, plots$pages[[file]]$bytes)) return()
    plots$pages[[file]]$bytes <- bytes
    if (!update) {
        plots$count <- plots$count + 1L
        id <- plots$pages[[file]]$id <- paste0("plot-", Sys.getpid(), "-", plots$count)
    }
    display_raw("image/png", bytes, id, update)
}

# Called before a plot begins. A page that is complete is shown before its successor replaces it.
turn_page <- function(same_page) {
    device <- grDevices::dev.cur()
    file <- if (device > 1L) file_of(device)
    if (is.null(file) || same_page()) return()
    show_page(file)
    plots$pages[[file]]["id"] <- list(NULL)
    plots$pages[[file]]$length <- 0L
}

before_plot <- function(...) turn_page(function() graphics::par("new") || !graphics::par("page"))
before_grid <- function(...) turn_page(function() FALSE)

# Shows the pages that changed in this turn. The worker calls this at the end of every turn.
end_turn <- function() {
    if (!length(plots$pages)) return()
    devices <- as.integer(grDevices::dev.list())
    current <- grDevices::dev.cur()
    open <- character()
    for (device in devices) {
        file <- file_of(device)
        if (is.null(file)) next
        open <- c(open, file)
        grDevices::dev.set(device)
        tryCatch(show_page(file), error = function(e) message("The plot cannot be shown: ", conditionMessage(e)))
    }
    if (length(open)) grDevices::dev.set(current)
    for (file in setdiff(names(plots$pages), open)) {
        # The code has closed the device, and so the device has written its last page.
        written <- Sys.glob(sub("%03d", "*", file, fixed = TRUE))
        if (length(written)) show_file(file, max(written))
        unlink(written)
        plots$pages[[file]] <- NULL
    }
}

# ---- host tools ---------------------------------------------------------------------------------------------

# Values that JSON has no form for, as texts. `windlass_tool` converts all others.
plain <- function(x) {
    if (is.factor(x)) return(as.character(x))
    if (inherits(x, "POSIXt")) return(format(as.POSIXct(x), "%Y-%m-%dT%H:%M:%OSZ", tz = "UTC"))
    if (inherits(x, c("Date", "difftime", "integer64"))) return(format(x))
    if (is.character(x)) return(enc2utf8(x))
    if (is.complex(x)) return(as.character(x))
    if (is.list(x)) {
        kept <- attributes(x)[c("names", "class", "row.names")]
        x <- lapply(unclass(x), plain)
        attributes(x) <- kept[!vapply(kept, is.null, NA)]
    }
    x
}

to_json <- function(value) {
    answer <- native("windlass_to_json", plain(value))
    if (is.list(answer)) stop(answer[[1L]], call. = FALSE)
    answer
}

from_json <- function(text) {
    answer <- native("windlass_from_json", enc2utf8(paste(text, collapse = "\n")))
    if (!answer[[1L]]) stop(answer[[2L]], call. = FALSE)
    answer[[2L]]
}

tool_error <- function(message, code, type, call) {
    class <- c("tool_error", "error", "condition")
    structure(class = class, list(message = message, call = call, code = code, type = type))
}

# Calls tools at once and returns their values in order. Each request is a list of name, arguments and deadline.
call_tools <- function(requests, call = NULL) {
    answers <- native("windlass_tools", lapply(requests, function(request) list(
        request$name,
        plain(named_arguments(request$name, request$arguments)),
        if (is.null(request$deadline)) -1 else as.double(request$deadline) * 1000
    )))
    values <- lapply(answers, function(answer) {
        if (answer[[1L]]) return(list(answer[[2L]]))
        error <- answer[[2L]]
        if (is.character(error)) error <- list(message = error, code = "bad_request")
        list(NULL, tool_error(error$message, error$code, error$type, call))
    })
    for (value in values) if (length(value) > 1L) stop(value[[2L]])
    lapply(values, `[[`, 1L)
}

# Arguments without a name get the names of the tool's schema, in its order.
named_arguments <- function(name, arguments) {
    given <- names(arguments)
    if (is.null(given)) given <- character(length(arguments))
    if (any(given == "")) {
        described <- call_tools(list(list(name = "windlass.describe", arguments = list(name = name))))[[1L]]
        schema <- if (is.null(described$schema)) described$input_schema else described$schema
        free <- setdiff(names(schema$properties), given)
        missing <- which(given == "")
        if (length(missing) > length(free)) stop("tool ", name, ": too many arguments without a name", call. = FALSE)
        given[missing] <- free[seq_along(missing)]
    }
    # An empty list with names becomes an object.
    structure(as.list(arguments), names = given)
}

tool <- function(name) {
    force(name)
    call <- function(..., .deadline = NULL)
        call_tools(list(list(name = name, arguments = list(...), deadline = .deadline)), sys.call())[[1L]]
    structure(call, class = "windlass_tool", name = name)
}

# Several calls at once: tools_parallel(a = quote(tools$search(query = "x")), b = ...)
tools_parallel <- function(..., .deadline = NULL) {
    calls <- as.list(substitute(list(...)))[-1L]
    frame <- parent.frame()
    requests <- lapply(calls, function(call) {
        callee <- if (is.call(call)) eval(call[[1L]], frame)
        if (!inherits(callee, "windlass_tool")) stop("tools_parallel takes calls of tools", call. = FALSE)
        arguments <- lapply(as.list(call)[-1L], eval, frame)
        list(name = attr(callee, "name"), arguments = arguments, deadline = .deadline)
    })
    structure(call_tools(unname(requests), sys.call()), names = names(calls))
}

tools <- structure(list(), class = "windlass_tools")

methods_of_tools <- list(
    "$.windlass_tools" = function(x, name) tool(name),
    "[[.windlass_tools" = function(x, name, ...) tool(name),
    "$.windlass_tool" = function(x, name) tool(paste0(attr(x, "name"), ".", name)),
    "print.windlass_tool" = function(x, ...) {
        cat("<host tool ", attr(x, "name"), ">\n", sep = "")
        invisible(x)
    },
    "print.windlass_tools" = function(x, ...) {
        print(tool("windlass.list")())
        invisible(x)
    }
)

# ---- the session --------------------------------------------------------------------------------------------

pager <- function(files, header, title, delete.file) {
    for (index in seq_along(files)) {
        if (nzchar(header[[index]])) cat(header[[index]], "\n\n", sep = "")
        lines <- readLines(files[[index]], warn = FALSE)
        # A letter and a backspace is how a terminal's pager underlines.
        cat(gsub(".\b", "", lines), sep = "\n")
    }
    if (isTRUE(delete.file)) unlink(files)
}

viewer <- function(url, height = NULL, ...) {
    path <- sub("^file://", "", url)
    if (!file.exists(path)) return(invisible(cat(url, "\n", sep = "")))
    display_html(readLines(path, warn = FALSE, encoding = "UTF-8"))
}

askpass <- function(prompt = "Password: ") native("windlass_input", prompt, TRUE)

no_editor <- function(name = NULL, file = "", title = NULL, ...)
    stop("this session has no editor: write the file with code", call. = FALSE)

exports <- c("display_html", "display_markdown", "display_text", "display_json", "display_image", "display_raw",
    "to_json", "from_json", "tools", "tools_parallel", "View")

# ---- zygotes ------------------------------------------------------------------------------------------------

# Loads packages before workers are forked, but none that sessions can change: a library or a package below
# `wanted$roots`, or, if the roots are not known, one that this user can write to. Returns a line for each package
# that cannot be loaded, and the libraries.
preload <- function(wanted) {
    changeable <- function(path) {
        if (!wanted$known) return(file.access(path, 2L) == 0L)
        any(vapply(unlist(wanted$roots), function(root) startsWith(paste0(path, "/"), paste0(root, "/")), NA))
    }
    paths <- Filter(Negate(changeable), normalizePath(.libPaths(), mustWork = FALSE))
    assign(".lib.loc", paths, envir = environment(.libPaths))
    missing <- character()
    for (package in unlist(wanted$packages)) {
        failed <- tryCatch({
            check_package(package, changeable, new.env())
            loadNamespace(package)
            NULL
        }, error = function(e) paste0(package, ": ", class(e)[[1L]], ": ", conditionMessage(e)))
        missing <- c(missing, gsub("\n", " ", failed, fixed = TRUE))
    }
    # What exists now becomes old, so that later collections leave its pages alone.
    gc()
    gc()
    list(missing, paths)
}

# Refuses a package that lies, itself or with a package that it needs, where sessions can write: a library can have
# links to packages elsewhere.
check_package <- function(package, changeable, seen) {
    if (isNamespaceLoaded(package) || !is.null(seen[[package]])) return()
    seen[[package]] <- TRUE
    path <- normalizePath(find.package(package))
    if (changeable(path)) stop("sessions can write to ", path, call. = FALSE)
    if (native("windlass_second_names", path)) stop("files in ", path, " have a second hard link", call. = FALSE)
    needs <- readRDS(file.path(path, "Meta", "package.rds"))
    for (needed in c(names(needs$Depends), names(needs$Imports))) check_package(needed, changeable, seen)
}

# In a forked worker, with the session's environment: what R's start would have done.
renew <- function() {
    if (exists(".Random.seed", globalenv(), inherits = FALSE)) rm(".Random.seed", envir = globalenv())
    for (category in c("LC_CTYPE", "LC_COLLATE", "LC_TIME", "LC_MONETARY", "LC_MESSAGES")) Sys.setlocale(category, "")
    # Since R 4.2, these variables have placeholders.
    if (exists(".expand_R_libs_env_var", baseenv())) {
        expand <- get(".expand_R_libs_env_var", baseenv())
        for (name in c("R_LIBS_SITE", "R_LIBS_USER"))
            do.call(Sys.setenv, structure(list(expand(Sys.getenv(name))), names = name))
    }
    split <- function(name) strsplit(Sys.getenv(name), ":", fixed = TRUE)[[1L]]
    .libPaths(c(split("R_LIBS"), split("R_LIBS_USER")))
}

site_profile <- function() {
    file <- Sys.getenv("R_PROFILE", file.path(R.home("etc"), "Rprofile.site"))
    if (nzchar(file) && file.exists(file)) sys.source(file, baseenv())
}

user_profile <- function() {
    named <- Sys.getenv("R_PROFILE_USER")
    files <- if (nzchar(named)) named else c(".Rprofile", "~/.Rprofile")
    files <- files[file.exists(files)]
    if (length(files)) sys.source(files[[1L]], globalenv())
}

first <- function() {
    if (exists(".First", globalenv(), inherits = FALSE)) get(".First", globalenv())()
}

set_options <- function(columns) {
    options(device = open_device, pager = pager, help_type = "text", viewer = viewer, browser = viewer,
        askpass = askpass, menu.graphics = FALSE, editor = no_editor, keep.source = TRUE,
        keep.parse.data = FALSE)
    if (columns > 9L) options(width = columns)
}

install <- function(self) {
    for (name in names(methods_of_tools)) {
        part <- regmatches(name, regexec("^(.*)\\.(windlass_tools?)$", name))[[1L]]
        registerS3method(part[[2L]], part[[3L]], methods_of_tools[[name]], envir = baseenv())
    }
    setHook("before.plot.new", before_plot)
    setHook("before.grid.newpage", before_grid)
    attached <- attach(NULL, name = "windlass", warn.conflicts = FALSE)
    for (name in exports) assign(name, self[[name]], envir = attached)
}
